"""Both engines: results, cancellation, errors, admission, preemption, stop."""

import asyncio
import threading
from collections.abc import Awaitable

import pytest

from flyserve.core.errors import InternalError, NotReady
from flyserve.core.messages import Open
from flyserve.core.request import SamplingParams
from services.engine.base import ForwardInput, Job
from services.engine.engine import Engine
from services.engine.sequence import EngineSequence
from services.engine.simulation.runner import SimulatedRunner
from services.engine.thread_engine import ThreadEngine
from tests.support.touchy_engine import TouchyRunner, decode, lost, make_engine, opened


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
        if index not in culprits:
            engine.close(sequence)
            assert response == await engine.run(decode(await opened(engine, [20 + index] * 20), 10))
            continue
        assert isinstance(response, InternalError)
        assert str(response).startswith("the model failed on this sequence: ArithmeticError")
        sequence.truncate(20)
        assert (await engine.run(sequence.score())).choices, "without the fault it goes on"
        engine.close(sequence)
    # Jobs that arrive in different turns need a few more.
    assert runner.num_failed <= len(culprits) * 4 + 3
    await engine.stop()


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
    await asyncio.to_thread(runner.entered.wait, 240)
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


@pytest.mark.parametrize("kind", ["thread", "clock"])
async def test_a_failure_of_the_engine_ends_all_waiting_calls(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = TouchyRunner(2, 1024)
    engine = make_engine(kind, runner)
    await engine.start()
    sequence, other = await opened(engine, [1]), await opened(engine, [2])
    monkeypatch.setattr(runner, "resize", lambda slot, num_tokens: 1 / 0)
    calls: list[Awaitable[object]] = [engine.run(sequence.score()), engine.run(other.score())]
    calls.append(engine.open(Open("r", 1)))
    async with asyncio.timeout(240):
        ended = await asyncio.gather(*calls, return_exceptions=True)
        await engine.failure()
    assert [type(error) for error in ended] == [NotReady] * 3
    with pytest.raises(NotReady):
        await engine.open(Open("r", 1))
    await engine.stop()


async def test_a_failed_command_ends_its_request_and_the_engine_continues(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score_slot(slot: int) -> Job[None]:
        yield ForwardInput(slot, 0, [5], 1, SamplingParams(), 0, [5])

    neighbour = await opened(engine, [2])
    decoding = asyncio.create_task(engine.run(decode(neighbour, 200)))
    with pytest.raises(InternalError, match="the engine failed on this request: KeyError"):
        await engine.run(score_slot(7))
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedRunner, "allocate", lambda runner, num_tokens: 1 / 0)
        with pytest.raises(InternalError, match="the engine failed on this request: ZeroDivisionError"):
            await engine.open(Open("r", 1))
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedRunner, "free", lambda runner, slot: 1 / 0)
        engine.close(await opened(engine, [3]))
        await engine.open(Open("r", 1))
    assert len(await decoding) == 200 and engine.load().queued == 0


async def test_a_closed_sequence_has_no_part_in_the_next_one_of_its_slot(engine: Engine) -> None:
    closed = await opened(engine, [1, 2, 3])
    engine.close(closed)
    successor = await opened(engine, [2])
    assert engine.load().sequences == 1
    decoding = asyncio.create_task(engine.run(decode(successor, 200)))
    with pytest.raises(NotReady, match="closed"):
        await engine.run(closed.score())
    engine.close(closed)
    assert len(await decoding) == 200


class HangingKeepalive:
    """A keepalive whose end waits for a follower that hangs."""

    idle_interval_s = 60.0

    def __init__(self) -> None:
        self.closing = threading.Event()
        self.released = threading.Event()
        self.was_released = False

    def on_idle(self) -> None: ...

    def close(self) -> None:
        self.closing.set()
        self.was_released = self.released.wait(240)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_follower_that_hangs_holds_up_neither_the_event_loop_nor_waiting_calls(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, keepalive = TouchyRunner(1, 1024), HangingKeepalive()
    engine = ThreadEngine(runner, keepalive=keepalive)
    await engine.start()
    sequence = await opened(engine, [1])
    if fails:
        monkeypatch.setattr(SimulatedRunner, "forward", lost)
    runner.gate.clear()
    scoring = asyncio.create_task(engine.run(sequence.score()))
    await asyncio.to_thread(runner.entered.wait, 240)
    opening = asyncio.create_task(engine.open(Open("r", 1)))
    await asyncio.sleep(0)
    stops = [] if fails else [asyncio.create_task(engine.stop()) for _ in range(2)]
    await asyncio.sleep(0)
    runner.gate.set()
    await asyncio.to_thread(keepalive.closing.wait, 240)
    with pytest.raises(NotReady):
        await opening
    await asyncio.gather(scoring, return_exceptions=True)
    assert not any(stop.done() for stop in stops)
    keepalive.released.set()
    await asyncio.gather(engine.stop(), *stops)
    assert keepalive.was_released
    assert not [thread for thread in threading.enumerate() if thread.name == "flyserve-engine"]
