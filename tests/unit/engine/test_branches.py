"""Branches of a sequence: they share its KV, use what is free, and give way to every sequence."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from fly.clock import SystemClock
from fly.errors import Overloaded
from fly.messages import Open, Role
from services.engine.base import Job
from services.engine.engine import Engine
from services.engine.sequence import EngineSequence
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner

PROMPT = tuple(range(20, 60))
OPENING = Open("test", len(PROMPT))
PLACES, KV_TOKENS = 3, 512


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    config = SimulatedConfig(base_s=0.0, per_token_s=0.0)
    engine = ClockEngine(SimulatedRunner(config, Role.DRAFTER, PLACES, KV_TOKENS), SystemClock())
    await engine.start()
    yield engine
    await engine.stop()


async def opened(engine: Engine, tokens: Sequence[int] = PROMPT) -> EngineSequence:
    """Return an open sequence whose tokens all have KV."""
    sequence = await engine.open(replace(OPENING, prompt_length=len(tokens)))
    sequence.extend(tokens)
    await engine.run(sequence.score())
    return sequence


async def forked(engine: Engine, parent: EngineSequence, length: int, token: int) -> EngineSequence:
    """Return a branch that follows the first `length` tokens of its parent and then `token`."""
    branch = engine.fork(parent)
    branch.extend((*parent.tokens.ids[:length], token))
    branch.take_kv(parent, length)
    await ended(engine, branch)
    return branch


async def ended(engine: Engine, branch: EngineSequence) -> None:
    """Decode four tokens on a branch, and wait until its job has ended."""
    done = asyncio.Event()

    def job() -> Job[None]:
        try:
            yield from branch.decode(4)
        finally:
            done.set()

    jobs = engine.run_when_idle(job())
    await done.wait()
    await jobs.cancel()


def nothing() -> Job[None]:
    """Return a job that has ended when all earlier commands have been carried out."""
    yield from ()


async def test_a_branch_copies_kv_and_decodes_what_a_sequence_of_the_same_tokens_does(engine: Engine) -> None:
    parent = await opened(engine)
    before = engine.load().prefill_tokens
    branch = await forked(engine, parent, 30, 99)
    assert engine.load().prefill_tokens == before, "only the token after the copied prefix is computed"
    assert engine.load().sequences == 1
    engine.close(branch)
    expected = await opened(engine, (*PROMPT[:30], 99))
    assert branch.tokens.ids[31:] == list((await engine.run(expected.decode(4))).choices)


async def test_a_sequence_takes_over_the_kv_of_a_branch(engine: Engine) -> None:
    parent = await opened(engine)
    branch = await forked(engine, parent, 30, 99)
    parent.truncate(30)
    parent.extend(branch.tokens.ids[30:])
    parent.take_kv(branch, branch.num_computed)
    # The branch may be used again at once: what it has computed stays in memory until its next job.
    branch.truncate(20)
    before = engine.load().prefill_tokens
    await engine.run(parent.score())
    assert engine.load().prefill_tokens == before
    assert engine.load().reused_tokens > 0
    engine.close(branch)


async def test_a_copied_prefix_ends_where_either_sequence_was_changed_since(engine: Engine) -> None:
    parent = await opened(engine)
    branch = engine.fork(parent)
    branch.extend((*PROMPT[:30], 99))
    branch.take_kv(parent, 30)
    branch.truncate(10)
    branch.extend((98, 97))
    before = engine.load().prefill_tokens
    await ended(engine, branch)
    assert engine.load().prefill_tokens == before + 1, "one of the two new tokens comes before the last one"
    engine.close(branch)


async def test_a_branch_without_a_place_has_no_job(engine: Engine) -> None:
    parent, *_ = [await opened(engine) for _ in range(PLACES)]
    branch = engine.fork(parent)
    branch.extend((1, 2, 3))
    await ended(engine, branch)
    assert len(branch) == 3 and engine.load().sequences == PLACES


async def test_branches_give_way_to_a_sequence_without_a_place(engine: Engine) -> None:
    parent = await opened(engine)
    branches = [await forked(engine, parent, 30, token) for token in (98, 99)]
    others = [await engine.open(OPENING, queue=False) for _ in range(PLACES - 1)]
    assert engine.load().sequences == PLACES
    for branch in branches:
        await ended(engine, branch)
        assert branch.num_computed == 0
    with pytest.raises(Overloaded):
        await engine.open(OPENING, queue=False)
    engine.close(others[0])
    assert engine.load().preemptions == 0


async def test_branches_give_way_to_a_sequence_that_grows(engine: Engine) -> None:
    parent = await opened(engine)
    branch = await forked(engine, parent, 30, 99)
    other = await opened(engine, PROMPT[:10])
    other.extend([7] * 420)
    await engine.run(other.score())
    assert (branch.num_computed, parent.num_computed, other.num_computed) == (0, 40, 430)
    assert engine.load().preemptions == 0


async def test_an_ended_branch_frees_its_memory_and_caches_nothing(engine: Engine) -> None:
    parent = await opened(engine)
    used = engine.load().kv_used
    branch = await forked(engine, parent, 30, 99)
    assert engine.load().kv_used > used
    engine.close(branch)
    engine.close(branch)
    await engine.run_when_idle(nothing()).cancel()
    assert (engine.load().kv_used, engine.load().kv_cached) == (used, 0)
