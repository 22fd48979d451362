"""Recorded answers of the real vLLM: as a target it agrees with the builtin engine on the same weights."""

import json
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import torch

from fly.messages import Role, Verification
from services.engine.config import Dtype
from services.engine.forward.torch_runner import load_runner
from services.engine.head.head_scorer import HeadScorer
from services.engine.thread_engine import ThreadEngine
from services.engine.vllm.library import VERSION
from services.target.builtin import BuiltinTarget
from services.target.config import TargetConfig
from services.target.vllm import VllmTarget
from tests.unit.engine.vllm.vllm_stand_in import Replay, stand_in_engine
from tools.record_vllm import MODEL, play

VOCAB_SIZE = 640


@pytest.fixture
async def expected() -> AsyncIterator[list[Verification]]:
    """Return the builtin engine's answers."""
    torch.set_num_threads(1)
    config = TargetConfig(role=Role.TARGET, model=MODEL, dtype=Dtype.FLOAT32, max_sequences=4, kv_tokens=4096)
    target = BuiltinTarget(engine := ThreadEngine(HeadScorer(load_runner(config)), config))
    await engine.start()
    yield await play(target)
    await target.stop()


async def test_scores_are_those_of_the_builtin_engine(expected: list[Verification]) -> None:
    found = await play(VllmTarget(stand_in_engine(Replay(), vocab_size=VOCAB_SIZE, max_logprobs=128)))
    for ours, theirs in zip(expected, found, strict=True):
        assert theirs.choices == ours.choices
        assert theirs.entropies == pytest.approx(ours.entropies, abs=1e-3)
        assert theirs.excluded_drafts == ours.excluded_drafts
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert other.choice == pytest.approx(one.choice, abs=1e-3)
            assert other.draft == (None if one.draft is None else pytest.approx(one.draft, abs=1e-3))
            assert [token for token, _ in other.top] == [token for token, _ in one.top]


def test_the_recording_is_of_the_supported_version() -> None:
    assert Replay().version == VERSION


def test_the_recorded_cache_was_used_and_never_served_a_scored_row() -> None:
    requests = [json.loads(key) | answer for key, answer in Replay().exchanges.items()]
    assert any(each["num_cached"] for each in requests)
    for each in requests:
        assert each["num_cached"] <= len(each["tokens"]) - 1 - each["num_rows"]


def test_scored_rows_are_in_descending_order() -> None:
    for answer in Replay().exchanges.values():
        for _, logprobs in [*answer["rows"], *(answer["scored"] or ())]:
            assert all(first >= second for first, second in pairwise(logprobs[1:]))
