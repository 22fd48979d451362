"""A drafter and its sub-drafter over real sockets: saved forwards, and faults that must not change drafts."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from flyserve.core.comparison import Comparison
from flyserve.core.messages import Draft, Load, Open, Role
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import TokenSequence, common_length
from flyserve.v1 import common_pb2
from flyserve.v1.drafter_pb2_grpc import DrafterStub
from flyserve.wire.streams import info_from_wire
from services.common.channel import open_channel
from services.common.streams import DrafterStream
from services.drafter.servicer import host_engine
from services.drafter.sub_drafters import SubDrafters
from services.engine.simulation.runner import SimulatedConfig
from services.lookup.config import SuffixConfig
from services.lookup.servicer import create_host
from tests.contract.engine_rig import PROMPT, helpers_at, simulated
from tests.contract.fakes import FakeDrafter, HashModel
from tests.support.serving import serving

OPENING = Open("test", prompt_length=len(PROMPT))
FAST_S = 0.002
SUFFIX = SuffixConfig(response_cache_tokens=4096)
NUM_DRAFTS, NUM_ROUNDS = 8, 4
TIMEOUT_S = 60


@asynccontextmanager
async def drafter(sub_drafter: str | SubDrafters, base_s: float = 0.02) -> AsyncIterator[str]:
    """Start a drafter that uses the sub-drafter at an address; yield its own address."""
    language = {"base_s": base_s, "context_length": 512, "response_tokens": (256, 256)}
    async with simulated(Role.DRAFTER, 8, **language) as engine:
        helpers = helpers_at(sub_drafter) if isinstance(sub_drafter, str) else sub_drafter
        await helpers.start()
        async with serving(host_engine(engine, helpers)) as address:
            yield address


async def respond(address: str, opening: Open = OPENING, rounds: int = NUM_ROUNDS) -> list[Draft]:
    """Run a response of which every draft is accepted."""
    sequence, drafts = TokenSequence(PROMPT), []
    async with open_channel(address) as channel, DrafterStream(channel, opening) as stream:
        for _ in range(rounds):
            draft = await stream.draft(sequence, len(sequence), NUM_DRAFTS)
            sequence.extend(draft.tokens)
            drafts.append(draft)
        stream.conclude(sequence, len(sequence))
    return drafts


async def accelerated(address: str, opening: Open = OPENING, rounds: int = NUM_ROUNDS) -> list[Draft]:
    """Repeat a response until it takes at most half a forward per token, since answers may be late."""
    async with asyncio.timeout(TIMEOUT_S):
        while forwards(drafts := await respond(address, opening, rounds)) * 2 > len(tokens(drafts)):
            pass
    return drafts


def tokens(drafts: list[Draft]) -> list[int]:
    return [token for draft in drafts for token in draft.tokens]


def forwards(drafts: list[Draft]) -> int:
    return sum(draft.forwards for draft in drafts)


async def cache_load(address: str, becomes: Callable[[Load], bool]) -> Load:
    """Wait until the sub-drafter's load satisfies `becomes`; return it."""
    async with open_channel(address) as channel, asyncio.timeout(TIMEOUT_S):
        while True:
            _, load = info_from_wire(await DrafterStub(channel).Info(common_pb2.InfoRequest()))
            if becomes(load):
                return load
            await asyncio.sleep(0.005)


async def test_a_generated_response_is_proposed_the_next_time() -> None:
    async with serving(await create_host(SUFFIX)) as suffix, drafter(suffix) as address:
        first = await respond(address)
        load = await cache_load(suffix, lambda load: load.kv_cached > 0)
        second = await accelerated(address)
    assert tokens(second) == tokens(first)
    assert load.kv_cached == len(PROMPT) + NUM_DRAFTS * NUM_ROUNDS
    assert forwards(first) == NUM_DRAFTS * NUM_ROUNDS
    assert sum(draft.sub_drafter_tokens for draft in second) > 0


async def respond_as(address: str, response: list[int], opening: Open = OPENING) -> list[Draft]:
    """Run a request whose response is given: of each draft its tokens are accepted, then one follows."""
    sequence, drafts, done = TokenSequence(PROMPT), list[Draft](), 0
    async with open_channel(address) as channel, DrafterStream(channel, opening) as stream:
        while done < len(response):
            draft = await stream.draft(sequence, len(sequence), NUM_DRAFTS // 2)
            accepted = common_length(draft.tokens, response[done:])
            sequence.extend(response[done : done + accepted + 1])
            done += accepted + 1
            drafts.append(draft)
        stream.conclude(sequence, len(sequence))
    return drafts


OTHER_RESPONSE = [100 + number * 7 % 300 for number in range(60)]
"""Text that the drafter's model never drafts."""


async def test_a_repeat_is_noticed_where_proposals_do_not_pay_and_little_else_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The choice goes by measured time: here the test alone decides whether proposals are used.
    monkeypatch.setattr(Comparison, "record", lambda *_: None)
    other = [token + 20 for token in reversed(OTHER_RESPONSE)]
    async with serving(await create_host(SUFFIX)) as suffix:
        sub_drafters = helpers_at(suffix)
        async with drafter(sub_drafters, FAST_S) as address:
            first = await respond_as(address, OTHER_RESPONSE)
            await cache_load(suffix, lambda load: load.kv_cached > 0)
            assert sub_drafters.comparison is not None
            sub_drafters.comparison.prefer(False)
            unlike = await respond_as(address, other)
            async with asyncio.timeout(TIMEOUT_S):
                while len(await respond_as(address, OTHER_RESPONSE)) > len(first) / 2:
                    pass
    assert sum(draft.proposals.requested for draft in unlike) <= 1 + len(unlike) / 16


async def test_a_response_that_repeats_another_is_drafted_without_forwards() -> None:
    async with serving(await create_host(SUFFIX)) as suffix, drafter(suffix, FAST_S) as address:
        first = await respond_as(address, OTHER_RESPONSE)
        await cache_load(suffix, lambda load: load.kv_cached > 0)
        async with asyncio.timeout(TIMEOUT_S):
            while len(second := await respond_as(address, OTHER_RESPONSE)) > len(first) / 2:
                pass
        edited = await respond_as(address, [*OTHER_RESPONSE[:30], 999, *OTHER_RESPONSE[31:]])
        sampled = replace(OPENING, sampling=SamplingParams(temperature=1.0, seed=3))
        drawn = await respond_as(address, OTHER_RESPONSE[:20], sampled)
        computed = await respond_as(address, OTHER_RESPONSE, replace(OPENING, without_copies=True))
    assert len(first) > 55, "the model itself drafts something else"
    assert forwards(second) < forwards(first) / 2
    assert len(second) < len(edited) < len(first), "an edit costs some rounds, then the repeat goes on"
    assert forwards(drawn) > len(drawn), "a draft at a temperature is drawn by the model"
    assert tokens(computed) == tokens(first), "the draft without copies is the same with a full memory"


async def test_requests_without_sub_drafter_neither_use_nor_fill_its_cache() -> None:
    async with serving(await create_host(SUFFIX)) as suffix, drafter(suffix) as address:
        drafts = await respond(address, replace(OPENING, without_sub_drafter=True))
        cached = await respond(address, rounds=1)
        load = await cache_load(suffix, lambda load: load.kv_cached > 0)
    assert all(draft.proposals.requested == 0 for draft in drafts)
    assert load.kv_cached == len(PROMPT) + len(tokens(cached))


async def hangs(step: int) -> Any:
    await asyncio.Event().wait()


async def answers_late(step: int) -> Any:
    await asyncio.sleep(0.05)


async def sends_invalid_snippets(step: int) -> Draft:
    return Draft(0, (), snippets=((20, 21, 22, SimulatedConfig().vocab_size, 30),))


async def sends_tokens(step: int) -> Draft:
    return Draft(0, (30,) * 500)


BROKEN = {"late": (hangs, answers_late), "invalid": (sends_invalid_snippets, sends_tokens)}


@pytest.mark.parametrize(
    ("counted", "script"), [(counted, script) for counted, scripts in BROKEN.items() for script in scripts]
)
async def test_bad_answers_change_nothing_and_are_counted(counted: str, script: Any) -> None:
    async with drafter("127.0.0.1:1") as address:
        expected = tokens(await respond(address))
    broken = FakeDrafter(HashModel())
    broken.script = script
    async with serving(broken.host) as sub_drafter, drafter(sub_drafter) as address:
        drafts = await respond(address)
        async with asyncio.timeout(TIMEOUT_S):
            while not any(getattr(draft.proposals, counted) for draft in drafts):
                drafts += await respond(address)
    assert tokens(drafts) == expected * (len(drafts) // NUM_ROUNDS)
    assert any(draft.proposals.requested for draft in drafts)


async def test_a_restarted_sub_drafter_is_used_again_by_the_same_stream() -> None:
    first = await create_host(SUFFIX)
    await first.start()
    async with drafter(first.address) as address, open_channel(address) as channel:
        sequence = TokenSequence(PROMPT)
        async with DrafterStream(channel, OPENING) as stream:

            async def draft() -> Draft:
                # The sequence repeats the prompt, whatever the model drafts.
                made = await stream.draft(sequence, len(sequence), NUM_DRAFTS)
                sequence.extend(PROMPT)
                return made

            assert (await draft()).proposals.requested > 0
            await first.drain(grace_s=0.0)
            while (await draft()).proposals.requested:
                pass
            async with serving(await create_host(replace_address(first.address))):
                async with asyncio.timeout(TIMEOUT_S):
                    while not (await draft()).proposals.requested:
                        pass


def replace_address(address: str) -> SuffixConfig:
    return SUFFIX.model_copy(update={"address": address})
