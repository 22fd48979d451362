"""Predicted outputs over gRPC and HTTP: the same response in fewer steps, and their counts in the usage."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flyserve.core.messages import VerifyStep
from flyserve.core.request import SamplingParams
from flyserve.core.types import Coupling, SparseDistribution
from flyserve.v1 import common_pb2
from router.text.tokenizer import Tokenizer
from tests.contract.fakes import EOS, FakeTarget, HashModel, save_tokenizer
from tests.contract.http_rig import MODEL, HttpRig, error_of, serving_http
from tests.contract.router_rig import EXACT, ids, running

ASKED: dict[str, Any] = {"prompt": "the fox", "prompt_token_ids": None}
TEXT = " says 12 quick words to the lazy dog, and 34 brown ones to the world; over the fox it jumps."
CHANGED = TEXT.replace("12 quick", "75 lazy").replace(" brown", "")


@dataclass(frozen=True)
class Reciter(HashModel):
    """A model that recites, whatever the prompt."""

    text: tuple[int, ...] = ()

    def choice(self, ids: Sequence[int], sampling: SamplingParams, prompt_length: int) -> int:
        position = len(ids) - prompt_length
        return self.text[position] if position < len(self.text) else EOS


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[HttpRig]:
    text = Tokenizer.load(save_tokenizer(tmp_path)).encode(TEXT)
    async with serving_http(tmp_path, agreement=0, model=Reciter(text=text)) as rig:
        yield rig


async def test_a_right_prediction_needs_a_step_per_draft(rig: HttpRig) -> None:
    predicted = await rig.rig.generate(EXACT, 200, **ASKED, prediction=TEXT)
    statistics = predicted.statistics
    assert predicted.text == TEXT and statistics.predicted == statistics.predicted_accepted
    assert statistics.rounds == 1 + -(-(len(predicted.tokens) - 9) // 16)


async def test_a_changed_prediction_gives_the_same_response(rig: HttpRig) -> None:
    alone = await rig.rig.generate(EXACT, 200, **ASKED)
    predicted = await rig.rig.generate(EXACT, 200, **ASKED, prediction=CHANGED)
    assert predicted.text == alone.text == TEXT and ids(predicted) == ids(alone)
    assert 0 < predicted.statistics.predicted_accepted < predicted.statistics.predicted
    assert predicted.statistics.rounds < alone.statistics.rounds / 2


@pytest.mark.parametrize("coupling", Coupling)
async def test_the_target_gets_what_the_coupling_needs(rig: HttpRig, coupling: Coupling) -> None:
    wire = common_pb2.Coupling.Value(f"COUPLING_{coupling.name}")
    sampling = common_pb2.SamplingParams(temperature=0.9, seed=5, coupling=wire)  # type: ignore[arg-type]
    predicted = await rig.rig.generate(EXACT, 200, **ASKED, sampling=sampling, prediction=TEXT)
    assert predicted.text == TEXT and predicted.statistics.predicted_accepted > 30
    first = rig.target.asked[0]
    assert isinstance(first, VerifyStep)
    certain = [SparseDistribution((token,), (1.0,)) for token in ids(predicted)[:8]]
    assert list(first.distributions) == (certain if coupling is Coupling.REJECTION else [])


async def test_each_choice_follows_the_prediction_by_itself(rig: HttpRig) -> None:
    choices, _ = await rig.rig.choices(EXACT, 200, **ASKED, n=3, prediction=TEXT)
    assert [choice.text for choice in choices] == [TEXT] * 3
    assert all(choice.statistics.predicted_accepted > 30 for choice in choices)


async def test_it_helps_without_a_drafter(tmp_path: Path) -> None:
    model = Reciter(text=Tokenizer.load(save_tokenizer(tmp_path)).encode(TEXT))
    async with running(tmp_path, [FakeTarget(model)]) as rig:
        predicted = await rig.generate(EXACT, 200, **ASKED, prediction=CHANGED)
    assert predicted.text == TEXT and predicted.statistics.predicted_accepted > 30


async def test_the_usage_counts_its_tokens(rig: HttpRig) -> None:
    async def usage(content: Any) -> tuple[str | None, Any]:
        completion = await rig.openai.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "the fox"}],
            temperature=0,
            max_tokens=200,
            prediction={"type": "content", "content": content},
            extra_body={"speculation": {"mode": "exact"}},
        )
        assert completion.usage is not None
        return completion.choices[0].message.content, completion.usage.completion_tokens_details

    for content, accepted, rejected in ((TEXT, 40, 0), ([{"type": "text", "text": CHANGED}], 30, 1)):
        text, counts = await usage(content)
        assert text == TEXT and counts.accepted_prediction_tokens >= accepted
        assert (counts.rejected_prediction_tokens > 0) == bool(rejected)
    text, unrelated = await usage("4 8 15 16 23 42")
    assert text == TEXT and unrelated.rejected_prediction_tokens > 0 == unrelated.accepted_prediction_tokens


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"speculation": {"mode": "plain"}}, "needs drafts, but speculation.mode is plain"),
        ({"speculation": {"draft_length": 0}}, "needs drafts, but speculation.draft_length.max is 0"),
        ({"prediction": {"type": "content", "content": "a" * 1_000_001}}, "at most 1000000"),
        ({"prediction": {"type": "file", "content": ""}}, "prediction.type"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"prediction": {"type": "content", "content": [{"type": "image_url"}]}}, "only text is supported"),
        ({"prediction": "the fox"}, "prediction"),
    ],
)
async def test_a_prediction_that_cannot_help_is_refused(
    rig: HttpRig, fields: dict[str, Any], message: str
) -> None:
    body = {"model": MODEL, "prompt": "the fox", "prediction": {"type": "content", "content": "the dog"}}
    response = await rig.post("/v1/completions", {**body, **fields})
    error = error_of(response)
    assert response.status_code == 400 and error["param"].startswith("prediction")
    assert message in f"{error['param']}: {error['message']}"
