"""One run: warm-up, rest, load, rest, while every process is looked at."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from benchmarks.soak.crowd import Crowd
from benchmarks.soak.figures import Run, Sample
from benchmarks.soak.plan import Plan
from benchmarks.soak.system import REPLACED, System, running

_REST_SAMPLES, _REST_POLL_S = 5, 0.5

Tell = Callable[[str], None]


async def measure(plan: Plan, tell: Tell = lambda words: None) -> Run:
    """Runs the plan; `tell` is told what begins.

    Raises:
        ConfigError: A process could not be started.
        NotReady: One did not serve in time.
    """
    with running(plan) as system:
        tell(f"the warm-up, for {plan.warm_up_s:g} s")
        warming = Crowd(system.addresses, plan)
        async with _replacing(system, plan.warm_up_s / 2):
            await warming.ask_for(plan.warm_up_s)
        before = await _at_rest(system, plan)
        tell(f"the load, for {plan.load_s:g} s")
        crowd, counted = Crowd(system.addresses, plan), system.outcomes()
        async with _looking(system, plan.sample_s) as loaded, _replacing(system, plan.replace_s):
            await crowd.ask_for(plan.load_s)
        tell("the rest")
        after = await _at_rest(system, plan)
        since = {name: number - counted.get(name, 0) for name, number in system.outcomes().items()}
        during = [sample for sample in loaded if sample.at_s <= plan.load_s]
        faults = [*warming.faults, *crowd.faults, *system.internal_errors()]
        return Run(before, during, after, crowd.told(), since, faults)


async def _at_rest(system: System, plan: Plan) -> list[Sample]:
    """Samples once nothing is open any more, or when the time for that is over."""
    end_s = time.monotonic() + plan.rest_s
    while any(sample.open for sample in await _look(system, 0.0)) and time.monotonic() < end_s:
        await asyncio.sleep(_REST_POLL_S)
    samples: list[Sample] = []
    for _ in range(_REST_SAMPLES):
        await asyncio.sleep(_REST_POLL_S)
        samples += await _look(system, 0.0)
    return samples


@asynccontextmanager
async def _looking(system: System, period_s: float) -> AsyncIterator[Sequence[Sample]]:
    """The samples of the block, complete when it ends."""
    samples: list[Sample] = []
    began_s = time.monotonic()

    async def look() -> None:
        samples.extend(await _look(system, began_s))

    async with _every(period_s, look):
        yield samples


@asynccontextmanager
async def _replacing(system: System, period_s: float) -> AsyncIterator[None]:
    """One target is killed and restarted, again and again; never where the period is 0."""
    if not period_s:
        yield
        return
    async with _every(period_s, lambda: asyncio.to_thread(system.replace, REPLACED)):
        yield


@asynccontextmanager
async def _every(period_s: float, act: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Acts again and again until the block ends; what has begun then comes to its end."""
    is_over = asyncio.Event()

    async def go_on() -> None:
        while not is_over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), period_s)
                return
            await act()

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        is_over.set()
        await task


async def _look(system: System, began_s: float) -> list[Sample]:
    return await asyncio.to_thread(lambda: list(system.look(began_s)))
