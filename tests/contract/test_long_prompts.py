"""Long prompts through a whole system: no piece of work on an event loop is long, no sequence is replayed."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flyserve.v1 import generation_pb2 as pb
from services.common.channel import open_channel
from services.drafter import sub_drafters
from tests.contract.router_rig import FLY, Rig, make_request
from tests.contract.system_rig import INSTANT, whole_system
from tests.support.loop_monitor import assert_short_pieces

LANGUAGE = {
    **INSTANT,
    "vocab_size": 128_000,
    "context_length": 140_000,
    "response_tokens": [100_000, 100_000],
}
ROOM = {"max_sequences": 8, "kv_tokens": 1_200_000, "max_batch_tokens": 8192}
"""Memory in which several long prompts fit."""


@asynccontextmanager
async def system(model: Path) -> AsyncIterator[Rig]:
    """Serve a router, a target, a drafter and a sub-drafter, all on this event loop."""
    drafting = {**LANGUAGE, "agreement": 0.8, "base_s": 0.0005}  # so that drafts can pay
    sections = {
        "sub_drafter": {"response_cache_tokens": 4096},
        "drafter": {"simulated": drafting, **ROOM},
        "target": {"simulated": {**LANGUAGE, "base_s": 0.001}, **ROOM},
    }
    async with whole_system(model, **sections) as hosts, open_channel(hosts["router"].address) as channel:
        yield Rig(channel)


@pytest.mark.parametrize(("length", "num_logprobs"), [(8_000, 1), (4_000, 20)])
async def test_a_long_prompt_is_scored_in_short_pieces(model: Path, length: int, num_logprobs: int) -> None:
    async with system(model) as rig:

        async def score(attempt: int) -> None:
            ids = pb.TokenIds(ids=[(at * 7919 + attempt) % 300 for at in range(length)])
            request = make_request(FLY, 0, prompt_token_ids=ids, prompt_logprobs=num_logprobs)
            response = await rig.stub.Generate(request, timeout=100)
            assert len(response.prompt) == length and not response.choices[0].tokens

        await assert_short_pieces(score)


@pytest.mark.parametrize(("length", "num_choices"), [(32_000, 4), (130_000, 1)])
async def test_no_piece_of_work_on_a_loop_is_long(
    model: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    length: int,
    num_choices: int,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sub_drafters, "_RESPONSE_TIMEOUT_S", 240.0)
    async with system(model) as rig:

        async def generate(attempt: int) -> None:
            # The lengths differ, so the prompts share no prefix.
            size = length + attempt
            ids = pb.TokenIds(ids=[(position * 7919 + size) % 100_000 + 20 for position in range(size)])
            request = make_request(FLY, 48, prompt_token_ids=ids, n=num_choices)
            response = await rig.stub.Generate(request, timeout=100)
            for choice in response.choices:
                assert len(choice.tokens) == 48 and choice.statistics.replays == 0
                assert choice.statistics.proposals_requested > 0

        await assert_short_pieces(generate)
        assert "without a sub-drafter" not in caplog.text
