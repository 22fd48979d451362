"""Drafter and sub-drafter over real sockets, with a simulated engine."""

from collections.abc import AsyncIterator

import grpc
import pytest

from flyserve.core.messages import Open, Role
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import TokenSequence
from services.common.streams import DrafterStream
from services.drafter.ahead import DraftingLimits
from services.drafter.servicer import host_engine
from services.drafter.sub_drafters import SubDrafters
from services.engine.simulation.clock_engine import ClockEngine
from services.lookup.config import SuffixConfig
from services.lookup.servicer import create_host
from tests.contract.engine_rig import PROMPT, helpers_at, simulated
from tests.support.serving import becomes_true, connected, serving

OPENING = Open("test", prompt_length=len(PROMPT), sampling=SamplingParams(stop_token_ids=(2,)))


@pytest.fixture
async def engine() -> AsyncIterator[ClockEngine]:
    async with simulated(Role.DRAFTER, base_s=0.001, context_length=64) as engine:
        yield engine


@pytest.fixture
async def channel(engine: ClockEngine) -> AsyncIterator[grpc.aio.Channel]:
    async with connected(host_engine(engine, SubDrafters(None))) as channel:
        yield channel


async def test_a_draft_continues_the_sequence_and_is_remembered(channel: grpc.aio.Channel) -> None:
    sequence = TokenSequence(PROMPT)
    async with DrafterStream(channel, OPENING) as stream:
        whole = await stream.draft(sequence, len(sequence), 8)
        sequence.extend(whole.tokens[:4])
        rest = await stream.draft(sequence, len(sequence), 4)
    assert rest.tokens == whole.tokens[4:]
    assert (whole.forwards, whole.sub_drafter_tokens, stream.replays) == (8, 0, 0)


async def test_a_step_for_no_tokens_only_updates(channel: grpc.aio.Channel) -> None:
    async with DrafterStream(channel, OPENING) as stream:
        draft = await stream.draft(TokenSequence(PROMPT), 0, 0)
    assert (draft.tokens, draft.forwards) == ((), 0)


async def test_near_the_context_limit_it_drafts_less_then_nothing(channel: grpc.aio.Channel) -> None:
    async with DrafterStream(channel, OPENING) as stream:
        near = await stream.draft(TokenSequence([20] * 60), 0, 8)
        at = await stream.draft(TokenSequence([20] * 64), 0, 8)
    assert (len(near.tokens), len(at.tokens)) == (4, 0)


async def test_a_draft_beyond_the_limit_is_cut(engine: ClockEngine) -> None:
    host = host_engine(engine, SubDrafters(None), DraftingLimits(max_draft=16))
    async with connected(host) as channel, DrafterStream(channel, OPENING) as stream:
        assert len((await stream.draft(TokenSequence(PROMPT), 0, 17)).tokens) == 16


async def test_cancelling_frees_the_sequence(channel: grpc.aio.Channel, engine: ClockEngine) -> None:
    with pytest.raises(RuntimeError, match="client gone"):
        async with DrafterStream(channel, OPENING) as stream:
            await stream.draft(TokenSequence(PROMPT), 0, 4)
            assert engine.load().sequences == 1
            raise RuntimeError("client gone")
    assert await becomes_true(lambda: engine.load().sequences == 0, within_s=240.0)


async def test_with_a_sub_drafter_the_draft_is_the_same(
    engine: ClockEngine, channel: grpc.aio.Channel
) -> None:
    async with DrafterStream(channel, OPENING) as stream:
        alone = await stream.draft(TokenSequence(PROMPT), 4, 16)
    # A prompt that contains the answer: look-up finds it.
    repeating = TokenSequence([*PROMPT, *alone.tokens, *PROMPT])
    async with DrafterStream(channel, OPENING) as stream:
        expected = await stream.draft(repeating, len(repeating), 16)
    async with serving(await create_host(SuffixConfig(response_cache_tokens=4096))) as address:
        await (helpers := helpers_at(address)).start()
        async with (
            connected(host_engine(engine, helpers)) as accelerated,
            DrafterStream(accelerated, OPENING) as stream,
        ):
            assert (await stream.draft(repeating, len(repeating), 16)).tokens == expected.tokens
