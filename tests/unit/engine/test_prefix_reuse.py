"""Sequences with a common prefix: which tokens are reused, and which are never shared."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from flyserve.core.clock import SystemClock
from flyserve.core.errors import Overloaded
from flyserve.core.messages import Open, StepTimes
from flyserve.core.sequence import SequenceUpdate, TokenSequence
from services.engine.base import Scores
from services.engine.config import ModelSection
from services.engine.engine import Engine
from services.engine.memory.kv_cache import ContiguousKvCache
from services.engine.memory.paged_kv_cache import PagedKvCache
from services.engine.sequence import EngineSequence
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from tests.support.remembering import RememberingRunner

CONFIG = SimulatedConfig(context_length=1024, base_s=0.0, per_token_s=0.0, per_token_above_s=0.0)
PROMPT = [20 + index % 200 for index in range(320)]


class Costed(RememberingRunner):
    """A runner whose forwards take no time."""

    def forward_s(self, batch: Sequence[object]) -> float:
        return 0.0


@asynccontextmanager
async def running(
    max_sequences: int = 8, kv_tokens: int = 4096, batch_tokens: int = 256, is_paged: bool = False
) -> AsyncIterator[Engine]:
    kind = PagedKvCache if is_paged else ContiguousKvCache
    runner = Costed(CONFIG, kind(kv_tokens, max_sequences))
    engine = ClockEngine(runner, SystemClock(), ModelSection(max_batch_tokens=batch_tokens))
    await engine.start()
    yield engine
    await engine.stop()
    assert runner.kv_used == 0 or engine.load().sequences > 0


async def opened(
    engine: Engine, tokens: Sequence[int], decided: int | None = None, salt: str = ""
) -> EngineSequence:
    sequence = await engine.open(Open("r", len(tokens), cache_salt=salt))
    settled = len(tokens) if decided is None else decided
    sequence.apply(SequenceUpdate(1, 0, tuple(tokens), settled, 0))
    return sequence


async def scored(engine: Engine, sequence: EngineSequence, num_outputs: int = 1) -> tuple[Scores, StepTimes]:
    return await engine.run_timed(sequence.score(num_outputs))


@pytest.mark.parametrize("is_closed", [True, False])
async def test_the_second_of_two_computes_only_its_own_tokens(is_closed: bool) -> None:
    async with running() as engine:
        first = await opened(engine, PROMPT)
        expected, times = await scored(engine, first)
        assert (times.prefill_tokens, times.reused_tokens) == (319, 0)
        if is_closed:
            engine.close(first)
        second = await opened(engine, [*PROMPT[:300], 7, 8, 9])
        _, times = await scored(engine, second)
        assert (times.prefill_tokens, times.reused_tokens) == (302 - 288, 288)
        again, times = await scored(engine, await opened(engine, PROMPT))
        assert times.reused_tokens == 304 and again == expected
        load = engine.load()
        assert (load.prefill_tokens, load.reused_tokens) == (319 + 14 + 15, 288 + 304)


@pytest.mark.parametrize("salts", [("a", "b"), ("", "a"), ("a", "")])
async def test_other_salts_share_nothing(salts: tuple[str, str]) -> None:
    async with running() as engine:
        for salt in salts:
            sequence = await opened(engine, PROMPT, salt=salt)
            _, times = await scored(engine, sequence)
            assert times.reused_tokens == 0
            engine.close(sequence)
        for salt in salts:
            _, times = await scored(engine, await opened(engine, PROMPT, salt=salt))
            assert times.reused_tokens == 304


async def test_undecided_tokens_are_not_shared() -> None:
    async with running() as engine:
        first = await opened(engine, PROMPT, decided=100)
        await scored(engine, first)
        _, times = await scored(engine, await opened(engine, PROMPT))
        assert times.reused_tokens == 96
        first.apply(SequenceUpdate(2, 320, (), 320, TokenSequence(PROMPT).prefix_hash(320)))
        await scored(engine, first)
        _, times = await scored(engine, await opened(engine, PROMPT))
        assert times.reused_tokens == 304


async def test_a_full_hit_still_computes_the_output_positions() -> None:
    async with running() as engine:
        engine.close(first := await opened(engine, PROMPT[:32]))
        first = await opened(engine, PROMPT)
        await scored(engine, first)
        for num_outputs, reused in ((1, 304), (16, 304), (17, 288)):
            _, times = await scored(engine, await opened(engine, PROMPT), num_outputs)
            assert times.reused_tokens == reused
            assert times.prefill_tokens == 320 - reused - num_outputs


async def test_a_preempted_sequence_reuses_the_prefix_of_others() -> None:
    async with running(kv_tokens=1024) as engine:
        first, second, third = [await opened(engine, PROMPT) for _ in range(3)]
        for sequence in (first, second, third):
            await scored(engine, sequence)
        first.extend([5] * 100)
        await scored(engine, first)
        assert (second.num_computed, third.num_computed) == (320, 0)
        engine.close(first)
        _, times = await scored(engine, third)
        assert times.reused_tokens == 304 and times.prefill_tokens == 15


async def test_cached_memory_delays_no_open() -> None:
    async with running(max_sequences=2, kv_tokens=1024) as engine:
        for index in range(6):
            sequence = await opened(engine, [30 + index, *PROMPT])
            await scored(engine, sequence)
            engine.close(sequence)
        await scored(engine, await opened(engine, [5] * 500))
        load = engine.load()
        assert load.kv_used == 512 and 0 < load.kv_cached <= 512
        await scored(engine, await opened(engine, [6] * 512))
        assert engine.load().kv_used == 1024 and engine.load().kv_cached == 0


async def test_the_least_recently_used_prefix_is_dropped_first() -> None:
    async with running(kv_tokens=1024) as engine:
        for salt in "abab":
            sequence = await opened(engine, PROMPT, salt=salt)
            await scored(engine, sequence)
            engine.close(sequence)
        engine.close(await opened(engine, [5] * 400))
        reused = {}
        for salt in "ba":
            _, times = await scored(engine, await opened(engine, PROMPT, salt=salt))
            reused[salt] = times.reused_tokens
        assert reused == {"a": 0, "b": 304}


async def test_conversations_by_turns_find_their_last_prompts() -> None:
    """Each goes on with other tokens than the model's own, as an agent's does whose trace is replayed."""
    async with running(kv_tokens=6 * 320) as engine:
        for turn, length in enumerate(range(128, 288, 32)):
            prompt = PROMPT[:length]
            for salt in ("abc" * 2)[turn % 3 :][:3]:
                sequence = await opened(engine, prompt, salt=salt)
                _, times = await scored(engine, sequence)
                assert times.reused_tokens == (length - 32 if turn else 0)
                known = TokenSequence(prompt).prefix_hash(length)
                sequence.apply(SequenceUpdate(2, length, (9,) * 32, length + 32, known))
                await scored(engine, sequence)
                engine.close(sequence)


async def test_a_long_prefix_of_which_little_is_shared_stays_new() -> None:
    async with running(kv_tokens=1024) as engine:
        for tokens in (PROMPT, [5] * 320, [*PROMPT[:96], *[7] * 32]):
            sequence = await opened(engine, tokens)
            await scored(engine, sequence)
            engine.close(sequence)
        engine.close(await opened(engine, [6] * 400))
        _, times = await scored(engine, await opened(engine, PROMPT))
        assert times.reused_tokens == 304


async def test_sequences_that_close_before_a_forward_keep_their_prefix_new() -> None:
    async with running(kv_tokens=1024) as engine:
        await scored(engine, first := await opened(engine, PROMPT))
        engine.close(first)
        for turn in range(6):
            sequence = await opened(engine, [*PROMPT, turn, turn])
            scoring = engine.run_timed(sequence.score(1))
            task = asyncio.ensure_future(scoring)
            await asyncio.sleep(0)
            engine.close(sequence)
            with suppress(Exception, asyncio.CancelledError):
                await task
            await scored(engine, other := await opened(engine, [30 + turn] * 320))
            engine.close(other)
        _, times = await scored(engine, await opened(engine, PROMPT))
        assert times.reused_tokens == 304


async def test_closed_sequences_of_one_prefix_are_kept_once() -> None:
    async with running() as engine:
        for length in (320, 160, 320, 240):
            sequence = await opened(engine, PROMPT[:length])
            await scored(engine, sequence)
            engine.close(sequence)
        await scored(engine, await opened(engine, [5]))
        assert engine.load().kv_cached == 320


def test_a_preemption_during_an_update_is_not_lost() -> None:
    """The engine's thread may preempt while the owner applies an update."""
    runner = SimulatedRunner(CONFIG, RememberingRunner(CONFIG, ContiguousKvCache(64, 1)).info.role, 1, 64)
    sequence = EngineSequence(Open("r", 3), runner.allocate(64) or 0, 1024, 64, 64)

    class Preempting(tuple[int, ...]):
        def __len__(self) -> int:
            sequence.forget_kv()
            return super().__len__()

    sequence.apply(SequenceUpdate(1, 0, (20, 21, 22), 3, 0))
    job = sequence.score()
    with pytest.raises(StopIteration):
        job.send(runner.forward([next(job)])[0])
    assert sequence.num_computed == 3
    kept = TokenSequence([20, 21, 22]).prefix_hash(3)
    sequence.apply(SequenceUpdate(2, 3, Preempting((23,)), 4, kept))
    assert sequence.num_computed == 0
    assert next(sequence.score()).start == 0


async def test_a_sequence_does_not_drop_the_prefix_that_it_is_about_to_share() -> None:
    prompt, computed = PROMPT, []
    async with running(kv_tokens=512, is_paged=True) as engine:
        for _ in range(5):
            sequence = await opened(engine, prompt)
            computed.append((await scored(engine, sequence))[1].prefill_tokens)
            engine.close(sequence)
            prompt = [*prompt, *[7] * 32]
    assert computed == [319, *[31] * 4]


async def test_sequences_that_are_admitted_beside_a_full_cache_all_find_memory() -> None:
    async with running(kv_tokens=512, is_paged=True) as engine:
        first = await opened(engine, PROMPT)
        await scored(engine, first)
        engine.close(first)
        both = [await opened(engine, [8 + number] * 240) for number in range(2)]
        with pytest.raises(Overloaded):
            await engine.open(Open("r", 64), queue=False)
        await asyncio.gather(*(scored(engine, each) for each in both))
        assert (engine.load().preemptions, engine.load().kv_used) == (0, 480)
