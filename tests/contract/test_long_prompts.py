"""Long prompts through a whole system: no piece of work on an event loop is long, no sequence is replayed."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fly.clock import SystemClock
from fly.messages import Role
from protos.flyserve.v1 import generation_pb2 as pb
from router.config import RouterConfig
from router.server import create_host
from services.common.endpoint_sources import ListedEndpointSource
from services.drafter.servicer import host_engine as host_drafter
from services.drafter.sub_drafters import SubDrafters
from services.engine.config import ModelSection
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.lookup.config import LOOKUPS
from services.lookup.servicer import create_host as create_sub_drafter
from services.target.servicer import host_engine as host_target
from tests.contract.fakes import save_tokenizer
from tests.contract.router_rig import FLY, Rig, make_request
from tests.support.loop_monitor import assert_short_pieces
from tests.support.serving import connected, serving

LANGUAGE = SimulatedConfig(
    vocab_size=128_000,
    context_length=140_000,
    response_tokens=(100_000, 100_000),
    base_s=0.001,
    per_token_s=0.0,
    per_token_above_s=0.0,
)


async def engine(role: Role, agreement: float) -> ClockEngine:
    """Start an engine in whose memory several long prompts fit."""
    base_s = LANGUAGE.base_s if role is Role.TARGET else LANGUAGE.base_s / 2  # so that drafts can pay
    language = replace(LANGUAGE, agreement=agreement, base_s=base_s)
    runner = SimulatedRunner(language, role, max_sequences=8, kv_tokens=1_200_000)
    made = ClockEngine(runner, SystemClock(), ModelSection(max_batch_tokens=8192))
    await made.start()
    return made


@asynccontextmanager
async def system(model: Path, sub_drafter: str) -> AsyncIterator[Rig]:
    """Serve a router, a target, a drafter and a sub-drafter, all on this event loop."""
    cache = {"response_cache_tokens": 4096} if sub_drafter == "suffix" else {}
    config = LOOKUPS.validate({"engine": sub_drafter, **cache})
    async with serving(await create_sub_drafter(config)) as helper:
        sub_drafters = SubDrafters(ListedEndpointSource({Role.SUB_DRAFTER: [helper]}, SystemClock()))
        await sub_drafters.start()
        target = host_target(await engine(Role.TARGET, 1.0))
        drafter = host_drafter(await engine(Role.DRAFTER, 0.8), sub_drafters)
        async with serving(target) as target_address, serving(drafter) as drafter_address:
            addresses = {"targets": (target_address,), "drafters": (drafter_address,)}
            host = await create_host(RouterConfig(model=model, grpc_port=0, **addresses))
            async with connected(host) as channel:
                yield Rig(channel)


@pytest.mark.parametrize(("length", "num_logprobs"), [(8_000, 1), (4_000, 20)])
async def test_a_long_prompt_is_scored_in_short_pieces(
    tmp_path: Path, length: int, num_logprobs: int
) -> None:
    async with system(save_tokenizer(tmp_path), "ngram") as rig:

        async def score(attempt: int) -> None:
            ids = pb.TokenIds(ids=[(at * 7919 + attempt) % 300 for at in range(length)])
            request = make_request(FLY, 0, prompt_token_ids=ids, prompt_logprobs=num_logprobs)
            response = await rig.stub.Generate(request, timeout=100)
            assert len(response.prompt) == length and not response.choices[0].tokens

        await assert_short_pieces(score)


@pytest.mark.parametrize("sub_drafter", ["ngram", "suffix"])
@pytest.mark.parametrize(("length", "num_choices"), [(32_000, 4), (130_000, 1)])
async def test_no_piece_of_work_on_a_loop_is_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, length: int, num_choices: int, sub_drafter: str
) -> None:
    caplog.set_level(logging.INFO)
    async with system(save_tokenizer(tmp_path), sub_drafter) as rig:

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
