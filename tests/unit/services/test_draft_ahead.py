"""Drafting ahead: the same drafts, sooner; dropped if contradicted; no other sequence waits for it."""

import asyncio
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyserve.core.comparison import Comparison
from flyserve.core.messages import Draft, DraftStep, Open, Role
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import SequenceMirror, TokenSequence, common_length
from flyserve.core.types import Coupling
from services.drafter.ahead import DraftingLimits
from services.drafter.drafting import SubDrafterSession
from services.drafter.session import DraftSession
from services.engine.base import Job, Scores
from services.engine.sequence import EngineSequence
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner

LANGUAGE = SimulatedConfig(response_tokens=(30, 30), vocab_size=64)
GREEDY = SamplingParams(stop_token_ids=(2,))
SAMPLED = [replace(GREEDY, temperature=1.0, seed=5, coupling=coupling) for coupling in Coupling]
AHEAD, ALONE = DraftingLimits(ahead_sequences=math.inf), DraftingLimits()
NUM_DRAFTS = 4


class HastyClock:
    """A clock that advances at once on every sleep, but yields to all other tasks."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)


@asynccontextmanager
async def drafter(agreement: float = 1.0, kv_tokens: int = 4096) -> AsyncIterator[ClockEngine]:
    config = replace(LANGUAGE, agreement=agreement, base_s=0.01)
    engine = ClockEngine(SimulatedRunner(config, Role.DRAFTER, 8, kv_tokens), HastyClock())
    await engine.start()
    yield engine
    await engine.stop()


def target_choices(ids: list[int], num_drafts: int, opening: Open) -> tuple[int, ...]:
    """Return the target's choices before and after each of the last `num_drafts` tokens."""
    runner = SimulatedRunner(LANGUAGE, Role.TARGET, max_sequences=1, kv_tokens=1024)
    slot = runner.allocate(len(ids))
    assert slot is not None
    sequence = EngineSequence(opening, slot, LANGUAGE.vocab_size, 1024, chunk_tokens=512)
    sequence.extend(ids)

    def job() -> Job[Scores]:
        return (yield from sequence.score(num_drafts + 1))

    running = job()
    work = next(running)
    assert runner.resize(slot, len(ids))
    return runner.forward([work])[0].choices


@dataclass
class Played:
    """A response, its drafts, and the drafter's answers."""

    tokens: list[int]
    drafts: list[tuple[int, ...]]
    answers: list[Draft]

    @property
    def drafted_ahead(self) -> int:
        return sum(answer.drafted_ahead for answer in self.answers)

    @property
    def dropped_ahead(self) -> int:
        return sum(answer.dropped_ahead for answer in self.answers)


async def play(
    engine: ClockEngine,
    limits: DraftingLimits,
    prompt: list[int],
    rng: random.Random,
    sampling: SamplingParams,
    level: Comparison | None = None,
) -> Played:
    """Run exact speculation against the target, which takes a random time to verify."""
    opening = Open(f"test-{prompt}", len(prompt), sampling)
    sequence = await engine.open(opening)
    session = DraftSession(engine, sequence, SubDrafterSession(), limits, level)
    sequence_ids, mirror, played = TokenSequence(prompt), SequenceMirror(), Played([], [], [])
    try:
        for _ in range(12):
            draft = await session.step(
                DraftStep(mirror.update(sequence_ids, (), len(sequence_ids)), NUM_DRAFTS)
            )
            mirror.append(draft.tokens)
            played.answers.append(draft)
            played.drafts.append(draft.tokens)
            for _ in range(rng.randrange(40)):
                await asyncio.sleep(0)
            choices = target_choices([*sequence_ids.ids, *draft.tokens], len(draft.tokens), opening)
            sequence_ids.extend(choices[: common_length(draft.tokens, choices) + 1])
    finally:
        await session.close()
        engine.close(sequence)
    played.tokens = sequence_ids.ids[len(prompt) :]
    return played


async def play_all(
    agreement: float, limits: DraftingLimits, seed: int, sampling: SamplingParams, kv_tokens: int = 4096
) -> list[Played]:
    async with drafter(agreement, kv_tokens) as engine:
        rng = random.Random(seed)
        prompts = [[20 + number, 21, 22] for number in range(5)]
        return await asyncio.gather(*(play(engine, limits, prompt, rng, sampling) for prompt in prompts))


@settings(deadline=None, max_examples=12)
@given(st.sampled_from([0.3, 0.8, 1.0]), st.integers(0, 1000), st.sampled_from([GREEDY, *SAMPLED]))
def test_drafts_and_outputs_are_the_same_with_and_without(
    agreement: float, seed: int, sampling: SamplingParams
) -> None:
    alone = asyncio.run(play_all(agreement, ALONE, seed, sampling))
    ahead = asyncio.run(play_all(agreement, AHEAD, seed, sampling))
    for one, other in zip(alone, ahead, strict=True):
        assert (one.tokens, one.drafts) == (other.tokens, other.drafts)
        assert [a.distributions for a in one.answers] == [a.distributions for a in other.answers]


async def test_nothing_is_drafted_ahead_with_more_sequences_than_allowed() -> None:
    for most, is_ahead in ((4, False), (5, True)):
        played = await play_all(1.0, DraftingLimits(ahead_sequences=most), 1, GREEDY)
        assert any(one.answers[0].drafted_ahead or one.answers[1].drafted_ahead for one in played) is is_ahead


async def test_nothing_is_drafted_ahead_in_rounds_without_that_level() -> None:
    level = Comparison()
    for is_used in (True, False):
        level.prefer(is_used)
        async with drafter(1.0, 4096) as engine:
            played = await play(engine, AHEAD, [20, 21, 22], random.Random(1), GREEDY, level)
        assert (played.answers[1].drafted_ahead > 0) is is_used


async def test_confirmed_drafts_are_ready_and_contradicted_drafts_are_dropped() -> None:
    agreeing = await play_all(1.0, AHEAD, 1, GREEDY)
    assert sum(played.dropped_ahead for played in agreeing) == 0
    assert sum(played.drafted_ahead for played in agreeing) > 0
    disagreeing = await play_all(0.8, AHEAD, 1, GREEDY)
    assert sum(played.dropped_ahead for played in disagreeing) > 0
    assert sum(played.drafted_ahead for played in disagreeing) > 0
    assert all(
        played.drafted_ahead == played.dropped_ahead == 0 for played in await play_all(1.0, ALONE, 1, GREEDY)
    )


async def two_steps(engine: ClockEngine) -> tuple[Draft, Draft]:
    """Return a first draft, and the draft after an idle time and the acceptance of all its tokens."""
    opening = Open("test", 3, GREEDY)
    sequence = await engine.open(opening)
    session = DraftSession(engine, sequence, SubDrafterSession(), AHEAD)
    sequence_ids, mirror = TokenSequence([20, 21, 22]), SequenceMirror()
    first = await session.step(DraftStep(mirror.update(sequence_ids, (), 3), NUM_DRAFTS))
    mirror.append(first.tokens)
    for _ in range(100):
        await asyncio.sleep(0)
    sequence_ids.extend(target_choices([*sequence_ids.ids, *first.tokens], NUM_DRAFTS, opening))
    second = await session.step(DraftStep(mirror.update(sequence_ids, (), len(sequence_ids)), NUM_DRAFTS))
    await session.close()
    return first, second


async def test_a_confirmed_draft_takes_no_time() -> None:
    async with drafter() as engine:
        first, second = await two_steps(engine)
    assert second.drafted_ahead == len(second.tokens) == NUM_DRAFTS
    assert second.times.forward_ns == 0 < first.times.forward_ns


@pytest.mark.parametrize(("kv_tokens", "drafted_ahead"), [(160, 0), (256, NUM_DRAFTS)])
async def test_nothing_is_drafted_ahead_when_memory_is_scarce(kv_tokens: int, drafted_ahead: int) -> None:
    async with drafter(kv_tokens=kv_tokens) as engine:
        other = await engine.open(Open("other", 10, GREEDY))
        other.extend(range(20, 30))
        await engine.run(other.score())
        _, second = await two_steps(engine)
    assert second.drafted_ahead == drafted_ahead
    assert other.num_computed == 10


async def test_other_sequences_wait_for_the_running_forward_at_most() -> None:
    async with drafter() as engine:
        opening = Open("test", 3, GREEDY)
        one, other = await engine.open(opening), await engine.open(opening)
        session = DraftSession(engine, one, SubDrafterSession(), AHEAD)
        await session.step(DraftStep(SequenceMirror().update(TokenSequence([20, 21, 22]), (), 3), 20))
        other.extend([30, 31, 32])
        _, times = await engine.run_timed(other.score())
        assert times.batch_size == 1
        assert times.queue_ns <= 11_000_000
        await session.close()
