"""Places, cancellation and faults of an engine on vLLM, against a stand-in for `AsyncLLM`."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from fly.errors import InternalError, NotReady, Overloaded
from fly.messages import Open, Opened, Queued
from services.engine.vllm.engine import VllmEngine
from services.target.vllm import VllmTarget
from tests.unit.engine.vllm.vllm_client import PROMPT, greedy, opened
from tests.unit.engine.vllm.vllm_stand_in import StandIn, stand_in_engine


async def test_places_are_given_by_priority_and_the_line_is_limited() -> None:
    engine = stand_in_engine(StandIn(), max_sequences=1, max_queued=2)
    reports: list[Queued | Opened] = []
    order = list[int]()

    async def report(notice: Queued | Opened) -> None:
        reports.append(notice)

    async def wait(priority: int) -> None:
        async with VllmTarget(engine).open(Open("w", 1, priority=priority), report):
            order.append(priority)

    async with opened(engine):
        waits = [asyncio.create_task(wait(priority)) for priority in (0, 5)]
        await asyncio.sleep(0)
        assert engine.load().sequences == 1 and engine.load().queued == 2
        with pytest.raises(Overloaded, match="1 sequences are open and 2 are queued"):
            await wait(9)
    await asyncio.gather(*waits)
    assert order == [5, 0] and reports == [Queued(), Queued()]
    assert engine.load().sequences == engine.load().queued == 0


async def test_a_wait_that_is_cancelled_leaves_the_line() -> None:
    engine = stand_in_engine(StandIn(), max_sequences=1)
    async with opened(engine):
        waiting = asyncio.create_task(opened(engine).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert engine.load().queued == 0
    async with opened(engine) as client:
        await client.verify()


async def test_a_cancelled_step_ends_its_request() -> None:
    llm = StandIn(gate=asyncio.Event())
    async with opened(stand_in_engine(llm)) as client:
        step = asyncio.create_task(client.verify())
        while not llm.num_running:
            await asyncio.sleep(0)
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        assert llm.num_running == 0


async def test_an_error_of_vllm_ends_only_its_request() -> None:
    llm = StandIn(error=ValueError("no such thing"))
    async with opened(stand_in_engine(llm)) as client:
        with pytest.raises(InternalError, match="no such thing"):
            await client.verify()
        llm.error = None
        assert list((await client.verify()).choices) == greedy(PROMPT, 1)


async def ended_by(engine: VllmEngine, llm: StandIn, fault: Any) -> None:
    """Assert that a fault during a step ends the step, the line and the engine with `NotReady`."""
    failure = asyncio.create_task(engine.failure())
    async with opened(engine) as client:
        step = asyncio.create_task(client.verify())
        while not llm.num_running:
            await asyncio.sleep(0)
        fault()
        with pytest.raises(NotReady):
            await step
        async with asyncio.timeout(10):
            await failure
        with pytest.raises(NotReady):
            await client.verify()
    with pytest.raises(NotReady):
        async with opened(engine):
            pass
    await engine.stop()
    await engine.stop()
    assert llm.shutdowns == 1


async def test_the_end_of_the_engines_process_ends_all_steps() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        llm = StandIn(gate=asyncio.Event())
        await ended_by(stand_in_engine(llm, pids=[process.pid]), llm, process.kill)
    finally:
        process.kill()
        process.wait()


async def test_an_engine_that_reports_nothing_has_failed() -> None:
    llm = StandIn(gate=asyncio.Event())
    await ended_by(stand_in_engine(llm, timeout_s=0.05), llm, lambda: None)


async def test_an_engine_without_work_may_be_silent() -> None:
    engine = stand_in_engine(StandIn(), timeout_s=0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await engine.failure()


async def test_vllms_own_word_that_its_engine_is_dead_ends_all_steps() -> None:
    class EngineDeadError(Exception):
        pass

    llm = StandIn(gate=asyncio.Event(), error=EngineDeadError())
    await ended_by(stand_in_engine(llm), llm, llm.gate.set)


async def test_a_stop_ends_steps_and_waits() -> None:
    llm = StandIn(gate=asyncio.Event())
    engine = stand_in_engine(llm, max_sequences=1)
    async with opened(engine) as client:
        step = asyncio.create_task(client.verify())
        waiting = asyncio.create_task(opened(engine).__aenter__())
        while not llm.num_running:
            await asyncio.sleep(0)
        await engine.stop()
        for ended in (step, waiting):
            with pytest.raises(NotReady):
                await ended


async def test_the_load_counts_what_sequences_hold() -> None:
    engine = stand_in_engine(StandIn())
    async with opened(engine) as client, opened(engine) as other:
        await client.verify(5, 6)
        answer = await other.verify()
    assert (answer.load.sequences, answer.load.kv_used, answer.load.kv_capacity) == (2, 82, 4096)
    assert engine.load().kv_used == 0
    engine._stats.record(
        type("S", (), {"num_waiting_reqs": 3, "num_running_reqs": 1, "kv_cache_usage": 0.5})(),
        type("I", (), {"num_preempted_reqs": 2})(),
    )
    load = engine.load()
    assert (load.queued, load.kv_used, load.preemptions) == (3, 2048, 2)
