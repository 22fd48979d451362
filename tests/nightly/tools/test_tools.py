"""Tools of the trade against the demo pair, without adapters: lm-eval, AIPerf, LiteLLM, an agent."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ROOT, TARGET_MODEL, Deployment, demo_deployment, service

pytestmark = pytest.mark.timeout(300)

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""Environment of lm-eval and LiteLLM; AIPerf takes no local folder in offline mode."""
MODEL = "flyserve-demo"


@pytest.fixture(scope="module")
def demo() -> Iterator[Deployment]:
    with demo_deployment() as deployment:
        yield deployment


@contextmanager
def http_url(demo: Deployment, *flags: str) -> Iterator[str]:
    """Start one more router in front of the demo, and return the URL of its HTTP API."""
    places = ("--target", demo.targets[0].address, "--drafter", demo.drafter.address)
    ports = ("--grpc-port", "0", "--http-port", "0", "--model-name", MODEL)
    with service("router", "--model", str(TARGET_MODEL), *places, *ports, *flags) as router:
        yield router.urls[0]


@pytest.fixture(scope="module")
def url(demo: Deployment) -> Iterator[str]:
    """Return the URL of an API whose responses have vLLM's figures of speculation."""
    with http_url(demo, "--http.speculation-metrics", "true") as url:
        yield url


@pytest.fixture(scope="module")
def tools_url(demo: Deployment) -> Iterator[str]:
    """Return the URL of an API that renders tools."""
    # NOTE: by FLy the text depends on the load, and so does the length of a conversation.
    template, exact = Path(__file__).with_name("hermes.jinja"), ("--speculation.mode", "exact")
    with http_url(demo, "--chat-template", str(template), "--tool-parser", "hermes", *exact) as url:
        yield url


def run(variable: str, *arguments: str, program: str = "") -> str:
    """Run a tool that an environment variable names, or a program beside it; return what it prints."""
    tool = Path(os.environ[variable])
    others = {name: value for name, value in os.environ.items() if name not in OFFLINE}
    done = subprocess.run(
        [str(tool.with_name(program) if program else tool), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        env=others if variable == "AIPERF" else {**others, **OFFLINE},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def samples(folder: Path, task: str) -> list[Any]:
    """Return what lm-eval recorded of each problem."""
    (file,) = folder.glob(f"*/samples_{task}_2*.jsonl")
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted(found, key=lambda each: int(each["doc_id"]))


def test_lm_eval_generates_and_chooses(url: str, tmp_path: Path) -> None:
    tasks = [f"examples/lm_eval/{name}.yaml" for name in ("generate", "generate_plain", "choice")]
    where = f"model={MODEL},base_url={url}/v1/completions,num_concurrent=4,max_retries=1"
    run(
        "LM_EVAL",
        *("--model", "local-completions", "--model_args", where, "--tasks", ",".join(tasks)),
        *("--output_path", str(tmp_path), "--log_samples"),
    )
    exact, plain = (samples(tmp_path, name) for name in ("flyserve_generate", "flyserve_generate_plain"))
    assert len(exact) == 20 and [each["resps"] for each in exact] == [each["resps"] for each in plain]
    assert sum(each["exact_match"] for each in exact) >= 19
    assert sum(each["acc"] for each in samples(tmp_path, "flyserve_choice")) >= 19


def test_aiperf_prints_its_table_of_speculation(url: str, tmp_path: Path) -> None:
    lines = (ROOT / "examples/lm_eval/problems.jsonl").read_text(encoding="utf-8").splitlines()
    problems = [json.loads(line)["question"] for line in lines]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in problems))
    printed = run(
        "AIPERF",
        *("profile", "--model", MODEL, "--url", url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", str(TARGET_MODEL), "--input-file", str(prompts)),
        *("--custom-dataset-type", "single_turn", "--request-rate", "2", "--request-count", "12"),
        *("--use-server-token-count", "--extra-inputs", "temperature:0", "--random-seed", "1"),
        *("--output-artifact-dir", str(tmp_path / "out"), "--ui", "none", "--no-auto-plot"),
    )
    assert "Spec Decode" in printed and "Acceptance Length" in printed and "malformed" not in printed
    found = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == 12 and found["spec_decode_acceptance_length"]["min"] > 1


def test_litellm_streams_a_chat(url: str) -> None:
    printed = run("LM_EVAL", str(ROOT / "examples" / "litellm_chat.py"), url, program="python")
    assert "Answer: 35" in printed and printed.rstrip().endswith("tokens")


@pytest.mark.parametrize("program", ["litellm_tools.py", "agent.py"])
def test_a_tool_is_called_and_its_result_sent_back(tools_url: str, program: str) -> None:
    printed = run("LM_EVAL", str(ROOT / "examples" / program), tools_url, MODEL, program="python")
    assert re.search("called price with .*(book|pen)", printed) and re.search("(?s)answered: .+", printed)


@pytest.mark.parametrize("kind", ["litellm-chat", "litellm-responses", "agents-chat", "agents-responses"])
def test_a_conversation_of_three_turns_sends_back_what_it_received(tools_url: str, kind: str) -> None:
    program = str(Path(__file__).with_name("conversations.py"))
    printed = run("LM_EVAL", program, tools_url, MODEL, kind, program="python")
    assert "calls: 1" in printed
    assert kind == "litellm-responses" or re.search("typed: dollars=[27]", printed)
