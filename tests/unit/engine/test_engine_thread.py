"""Both engines: results, cancellation, errors, admission, preemption, stop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from fly.clock import SystemClock
from fly.errors import InternalError, InvalidRequest, NotReady, Overloaded
from fly.messages import Open, Role
from fly.request import SamplingParams
from fly.sequence import SequenceUpdate
from services.engine.base import ForwardInput, Job, RunnerLost, Scores
from services.engine.config import ModelSection
from services.engine.engine import Engine
from services.engine.sequence import EngineSequence
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.engine.thread_engine import ThreadEngine

CONFIG = SimulatedConfig(context_length=512, base_s=0.0, per_token_s=0.0, per_token_above_s=0.0)


class TouchyRunner(SimulatedRunner):
    """A runner that raises if a batch contains token 13, and that can be blocked."""

    def __init__(self, max_sequences: int, kv_tokens: int) -> None:
        super().__init__(CONFIG, Role.TARGET, max_sequences, kv_tokens)
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.largest_batch = 0
        self.num_failed = 0

    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        self.entered.set()
        assert self.gate.wait(20)
        self.largest_batch = max(self.largest_batch, len(batch))
        if any(13 in item.tokens for item in batch):
            self.num_failed += 1
            raise ArithmeticError("thirteen")
        return super().forward(batch)


def lost(runner: SimulatedRunner, batch: Sequence[ForwardInput]) -> list[Scores]:
    raise RunnerLost("the group is gone")


def make_engine(kind: str, runner: TouchyRunner, max_queued: int = 2) -> Engine:
    limits = ModelSection(max_batch_tokens=256, max_queued=max_queued)
    if kind == "thread":
        return ThreadEngine(runner, limits)
    return ClockEngine(runner, SystemClock(), limits)


@pytest.fixture(params=["thread", "clock"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    engine = make_engine(request.param, TouchyRunner(8, 1024))
    await engine.start()
    yield engine
    await engine.stop()


async def opened(engine: Engine, tokens: Sequence[int]) -> EngineSequence:
    sequence = await engine.open(Open("r", len(tokens)))
    sequence.apply(SequenceUpdate(1, 0, tuple(tokens), len(tokens), 0))
    return sequence


def decode(sequence: EngineSequence, num_tokens: int) -> Job[list[int]]:
    start = len(sequence)
    for _ in range(num_tokens):
        scores = yield from sequence.score()
        sequence.extend(scores.choices)
    return sequence.tokens.ids[start:]


async def test_many_jobs_return_the_same_as_each_alone(engine: Engine) -> None:
    async def respond(index: int) -> list[int]:
        sequence = await opened(engine, [20 + index, 30, 40])
        try:
            return await engine.run(decode(sequence, 20))
        finally:
            engine.close(sequence)

    together = await asyncio.gather(*(respond(index) for index in range(8)))
    assert together == [await respond(index) for index in range(8)]
    _, times = await engine.run_timed((await opened(engine, [1])).score())
    assert times.batch_size == 1 and times.queue_ns > 0


async def test_sequences_are_queued_up_to_a_limit_then_rejected(engine: Engine) -> None:
    sequences = [await opened(engine, [1]) for _ in range(8)]
    waiting = [asyncio.create_task(engine.open(Open("w", 1))) for _ in range(2)]
    while engine.load().queued < 2:
        await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await engine.open(Open("x", 1))
    assert caught.value.retry_after_s > 0
    waiting[0].cancel()
    engine.close(sequences[0])
    sequence = await waiting[1]
    assert engine.load().sequences == 8 and engine.load().queued == 0
    engine.close(sequence)


async def test_cancelling_a_job_ends_it_and_frees_its_slot(engine: Engine) -> None:
    sequence = await opened(engine, [1, 2, 3])
    task = asyncio.create_task(engine.run(decode(sequence, 10**6)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.close(sequence)
    engine.close(sequence)
    await engine.run((await opened(engine, [1])).score())
    assert engine.load().sequences == 1


async def test_an_exception_in_one_job_ends_only_that_job(engine: Engine) -> None:
    def broken(sequence: EngineSequence) -> Job[None]:
        yield from sequence.score()
        raise LookupError("broken")

    first, second = await opened(engine, [1]), await opened(engine, [2])
    good = asyncio.create_task(engine.run(decode(second, 5)))
    with pytest.raises(LookupError):
        await engine.run(broken(first))
    assert len(await good) == 5


async def test_a_failed_forward_ends_its_job_and_the_engine_continues(engine: Engine) -> None:
    bad, good = await opened(engine, [13]), await opened(engine, [2])
    with pytest.raises(InternalError, match="the model failed on this sequence: ArithmeticError"):
        await engine.run(bad.score())
    assert len(await engine.run(decode(good, 3))) == 3
    bad.truncate(0)
    bad.extend([14])
    assert (await engine.run(bad.score())).choices
    engine.close(bad)


@pytest.mark.parametrize("kind", ["thread", "clock"])
@pytest.mark.parametrize("culprits", [{0}, {7}, {3}, {2, 5}])
async def test_one_request_that_fails_costs_the_others_few_forwards(kind: str, culprits: set[int]) -> None:
    runner = TouchyRunner(8, 4096)
    engine = make_engine(kind, runner)
    await engine.start()
    sequences = [await opened(engine, [20 + index] * 20) for index in range(8)]
    for index in culprits:
        sequences[index].extend([13])

    async def respond(sequence: EngineSequence) -> list[int]:
        return await engine.run(decode(sequence, 10))

    together = await asyncio.gather(*map(respond, sequences), return_exceptions=True)
    for index, (sequence, response) in enumerate(zip(sequences, together, strict=True)):
        assert isinstance(response, InternalError) == (index in culprits)
        engine.close(sequence)
        if index not in culprits:
            assert response == await engine.run(decode(await opened(engine, [20 + index] * 20), 10))
    # Jobs that arrive in different turns need a few more.
    assert runner.num_failed <= len(culprits) * 4 + 3
    await engine.stop()


async def test_a_growing_sequence_preempts_the_one_admitted_last(engine: Engine) -> None:
    first, second, third = [await opened(engine, [number] * 300) for number in (1, 2, 3)]
    expected = {}
    for sequence in (first, second, third):
        expected[sequence] = await engine.run(sequence.score())
    first.extend([4] * 100)
    await engine.run(first.score())
    assert (third.num_computed, second.num_computed) == (0, 300)
    load = engine.load()
    assert (load.preemptions, load.sequences, load.queued) == (1, 3, 0)
    waiting = asyncio.create_task(engine.run(third.score()))
    while engine.load().queued < 1:
        await asyncio.sleep(0)
    assert engine.load().sequences == 2 and not waiting.done()
    assert (await engine.run(second.score())).choices == expected[second].choices
    engine.close(first)
    assert (await waiting).choices == expected[third].choices
    load = engine.load()
    assert (load.preemptions, load.sequences, load.queued) == (1, 2, 0)


async def three_opened(engine: Engine, priorities: Sequence[int] = (0, 0, 0)) -> list[EngineSequence]:
    """Open three sequences of 300 tokens, which fill memory, and compute them."""
    sequences = []
    for index, priority in enumerate(priorities):
        sequences.append(await engine.open(Open("r", 300, priority=priority)))
        sequences[-1].apply(SequenceUpdate(1, 0, (20 + index,) * 300, 0, 0))
        await engine.run(sequences[-1].score())
    return sequences


async def queued(engine: Engine, job: Job[Scores]) -> "asyncio.Task[Scores]":
    """Start a job and return once it waits for memory."""
    task = asyncio.create_task(engine.run(job))
    while engine.load().queued < 1:
        await asyncio.sleep(0)
    return task


async def test_the_last_sequence_preempts_itself_and_none_that_is_older(engine: Engine) -> None:
    first, second, third = await three_opened(engine)
    third.extend([4] * 100)
    task = await queued(engine, third.score())
    assert (first.num_computed, second.num_computed, third.num_computed) == (300, 300, 0)
    await engine.run(first.score())
    engine.close(second)
    await task
    assert third.num_computed == 400 and engine.load().preemptions == 1


async def test_the_lowest_priority_is_preempted_although_it_was_admitted_first(engine: Engine) -> None:
    first, second, third = await three_opened(engine, (-1, 0, 0))
    third.extend([4] * 100)
    await engine.run(third.score())
    assert (first.num_computed, second.num_computed, third.num_computed) == (0, 300, 400)


async def test_a_job_that_waits_for_memory_can_be_cancelled_and_repeated(engine: Engine) -> None:
    first, _, third = await three_opened(engine)
    third.extend([4] * 100)
    task = await queued(engine, third.score())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.run(first.score())
    assert engine.load().queued == 0
    task = await queued(engine, third.score())
    engine.close(first)
    await task
    assert third.num_computed == 400


async def test_closing_a_sequence_that_waits_for_memory_ends_its_job(engine: Engine) -> None:
    first, _, third = await three_opened(engine)
    third.extend([4] * 100)
    task = await queued(engine, third.score())
    engine.close(third)
    with pytest.raises(NotReady):
        await task
    await engine.run(first.score())
    assert (engine.load().queued, engine.load().sequences) == (0, 2)


async def test_an_idle_job_preempts_no_sequence(engine: Engine) -> None:
    first, second, third = await three_opened(engine)
    job = engine.run_when_idle(decode(first, 200))
    while not job._future.is_done:
        await asyncio.sleep(0)
    await job.cancel()
    assert engine.load().preemptions == 0 and len(first) > 300
    assert (second.num_computed, third.num_computed) == (300, 300)


@pytest.mark.parametrize("max_new_tokens", [0, 200])
async def test_busy_sequences_beyond_memory_all_finish_without_a_replay(
    engine: Engine, max_new_tokens: int
) -> None:
    async def respond(index: int) -> list[int]:
        sequence = await engine.open(Open("r", 300, max_new_tokens=max_new_tokens))
        sequence.apply(SequenceUpdate(1, 0, (20 + index,) * 300, 300, 0))
        try:
            return await engine.run(decode(sequence, 200))
        finally:
            engine.close(sequence)

    async with asyncio.timeout(20):
        together = await asyncio.gather(*(respond(index) for index in range(4)))
        assert (engine.load().preemptions > 0) == (max_new_tokens == 0)
        assert together == [await respond(index) for index in range(4)]


@pytest.mark.parametrize(
    ("opening", "field"),
    [
        (Open("r", 513), "prompt_length"),
        (Open("r", 1, SamplingParams(temperature=-0.5)), "sampling.temperature"),
        (Open("r", 1, SamplingParams(stop_token_ids=(5000,))), "sampling.stop_token_ids[0]"),
        (Open("r", 1, SamplingParams(logit_bias={-1: 1.0})), "sampling.logit_bias"),
        (Open("r", 1, SamplingParams(repetition_penalty=0.0)), "sampling.repetition_penalty"),
    ],
)
async def test_invalid_parameters_of_open_are_rejected(engine: Engine, opening: Open, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await engine.open(opening)
    assert caught.value.violations[0].field == field


async def test_stop_ends_all_jobs_and_leaves_no_thread(engine: Engine) -> None:
    sequence = await opened(engine, [1])
    task = asyncio.create_task(engine.run(decode(sequence, 10**6)))
    await asyncio.sleep(0)
    await engine.stop()
    await engine.stop()
    with pytest.raises(NotReady):
        await task
    with pytest.raises(NotReady):
        await engine.open(Open("r", 1))
    engine.close(sequence)
    assert not [thread for thread in threading.enumerate() if thread.name == "flyserve-engine"]


async def test_jobs_submitted_during_a_forward_share_the_next_one() -> None:
    runner = TouchyRunner(8, 1024)
    engine = make_engine("thread", runner)
    await engine.start()
    sequences = [await opened(engine, [index]) for index in range(1, 6)]
    runner.gate.clear()
    tasks = [asyncio.create_task(engine.run(sequences[0].score()))]
    await asyncio.to_thread(runner.entered.wait, 20)
    tasks += [asyncio.create_task(engine.run(sequence.score())) for sequence in sequences[1:]]
    await asyncio.sleep(0)
    runner.gate.set()
    await asyncio.gather(*tasks)
    await engine.stop()
    assert runner.largest_batch == 4


async def test_an_engine_that_was_not_started_is_not_ready() -> None:
    engine = make_engine("thread", TouchyRunner(1, 64))
    with pytest.raises(NotReady):
        await engine.open(Open("r", 1))
    await engine.stop()


async def test_a_failure_of_the_engine_ends_all_waiting_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = TouchyRunner(1, 64)
    engine = make_engine("thread", runner)
    await engine.start()
    sequence = await opened(engine, [1])
    monkeypatch.setattr(runner, "resize", lambda slot, num_tokens: 1 / 0)
    with pytest.raises(NotReady):
        await engine.run(sequence.score())
    with pytest.raises(NotReady):
        await engine.open(Open("r", 1))
    await engine.stop()


async def test_calls_that_arrive_while_the_engine_fails_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = TouchyRunner(2, 1024)
    engine = make_engine("thread", runner)
    await engine.start()
    first, second = await opened(engine, [1]), await opened(engine, [2])
    runner.gate.clear()
    tasks = [asyncio.create_task(engine.run(first.score()))]
    await asyncio.to_thread(runner.entered.wait, 20)
    tasks.append(asyncio.create_task(engine.run(second.score())))
    tasks.append(asyncio.create_task(engine.run_timed(second.score())))
    tasks.append(asyncio.create_task(engine.open(Open("r", 1))))
    await asyncio.sleep(0)
    monkeypatch.setattr(SimulatedRunner, "forward", lost)
    runner.gate.set()
    async with asyncio.timeout(20):
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await engine.failure()
    assert all(isinstance(result, NotReady) for result in results)
    await engine.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "flyserve-engine"]
