"""Both engines: results, cancellation, errors, admission, eviction, stop."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

from fly.clock import SystemClock
from fly.errors import InvalidRequest, NotReady, Overloaded
from fly.messages import Open, Role, StaleReason
from fly.request import SamplingParams
from fly.sequence import SequenceUpdate, StaleState
from services.engine.base import ForwardInput, Job, Scores
from services.engine.config import ModelSection
from services.engine.engine import Engine, ForwardError
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

    def forward(self, batch: Sequence[ForwardInput]) -> list[Scores]:
        self.entered.set()
        assert self.gate.wait(20)
        self.largest_batch = max(self.largest_batch, len(batch))
        if any(13 in item.tokens for item in batch):
            raise ArithmeticError("thirteen")
        return super().forward(batch)


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


async def test_a_failed_forward_ends_its_jobs_and_the_engine_continues(engine: Engine) -> None:
    bad, good = await opened(engine, [13]), await opened(engine, [2])
    with pytest.raises(ForwardError):
        await engine.run(bad.score())
    assert len(await engine.run(decode(good, 3))) == 3


async def test_the_least_recently_used_idle_sequence_is_evicted(engine: Engine) -> None:
    first, second = await opened(engine, [1] * 300), await opened(engine, [2] * 300)
    await engine.run(first.score())
    await engine.run(second.score())
    third = await opened(engine, [3] * 380)
    first_again = await engine.run(first.score())
    third.extend([4] * 100)
    await engine.run(third.score())
    assert first_again.choices
    with pytest.raises(StaleState) as caught:
        await engine.run(second.score())
    assert caught.value.reason is StaleReason.EVICTED


async def test_busy_sequences_beyond_memory_all_finish(engine: Engine) -> None:
    async def respond(index: int) -> int:
        prompt = [20 + index] * 300
        sequence = await opened(engine, prompt)
        while True:
            try:
                return len(await engine.run(decode(sequence, 200 - (len(sequence) - 300))))
            except StaleState:
                known = tuple(sequence.tokens.ids)
                sequence.apply(SequenceUpdate(1, 0, known, 300, 0))
            finally:
                if len(sequence) == 500:
                    engine.close(sequence)

    async with asyncio.timeout(20):
        assert all(await asyncio.gather(*(respond(index) for index in range(3))))


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
