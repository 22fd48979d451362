"""lm-eval against a model that reasons: stop strings that an evaluation always sends leave an answer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.contract.grammar_rig import marked_target
from tests.contract.http_reports.message_rig import MARKERS
from tests.nightly.tools.test_tools import MODEL, run, samples
from tests.support.processes import ROOT, service

pytestmark = pytest.mark.timeout(300)

STOPS = ["\n\n", "Question:", "Observation:", "</s>"]
BUDGET = {"thinking_token_budget": 6}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of an API whose model reasons, as far as the budget of a request allows."""
    model = str(marked_target(tmp_path_factory.mktemp("model"), MARKERS))
    template = str(Path(__file__).with_name("think.jinja"))
    served = ("--model", model, "--dtype", "float32", "--threads", "1", "--kv-tokens", "16384")
    ports = ("--grpc-port", "0", "--http-port", "0", "--model-name", MODEL, "--chat-template", template)
    with (
        service("services.target", *served) as target,
        service("router", "--model", model, "--target", target.address, *ports) as router,
    ):
        yield router.urls[0]


@pytest.mark.parametrize(
    ("kind", "path", "flags"),
    [
        ("local-chat-completions", "chat/completions", ("--apply_chat_template",)),
        ("local-completions", "completions", ()),
    ],
)
def test_every_problem_gets_an_answer(
    url: str, tmp_path: Path, kind: str, path: str, flags: tuple[str, ...]
) -> None:
    task = tmp_path / "think.yaml"
    generation = {"until": STOPS, "max_gen_toks": 120, "temperature": 0, "do_sample": False}
    content = {
        "task": "think",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(ROOT / "examples/lm_eval/problems.jsonl")}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}\n",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {**generation, **(BUDGET if flags else {})},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    task.write_text(yaml.safe_dump(content), encoding="utf-8")
    where = f"model={MODEL},base_url={url}/v1/{path},num_concurrent=4,max_retries=1"
    out = ("--output_path", str(tmp_path), "--log_samples")
    run("LM_EVAL", "--model", kind, "--tasks", str(task), "--model_args", where, *out, *flags)
    answers = [each["resps"][0][0] for each in samples(tmp_path, "think")]
    assert len(answers) == 20 and all(answer.strip() for answer in answers)
    assert not any(stop in answer for stop in STOPS for answer in answers)
