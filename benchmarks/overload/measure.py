"""Peak, overload, recovery: one run, and its figures."""

import asyncio
import os
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.overload.load import Asker, Attempt, Outcome
from benchmarks.overload.plan import Plan
from benchmarks.overload.system import running
from services.common.channel import open_channel

_SAMPLE_S = 0.5
_RECOVERED = 1.2
"""A request that takes no more than so many times what one takes at the peak: it waits for no place."""
_RECOVERY_S, _PROBES_PER_S, _POLL_S = 8.0, 2.0, 0.05


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to.

    Attributes:
        peak_per_s: Requests finished per second, with a client for every place and no more.
        offered_per_s: Requests sent per second under overload.
        admitted_per_s: Requests finished per second under overload, within their deadlines.
        outcomes: Requests under overload, by what became of them.
        rejection_p50_ms: Until a rejection was there.
        rejection_p99_ms: The same.
        memory_before_mb: The router's resident memory at the end of the peak.
        memory_most_mb: Under overload.
        usual_s: What a request takes at the peak, the median.
        recovery_s: From the end of the overload until a new request took about as long again.
        machine_load: Processes that wanted a core of this machine, the mean of a minute, before and after.
    """

    peak_per_s: float
    offered_per_s: float
    admitted_per_s: float
    outcomes: dict[str, int]
    rejection_p50_ms: float
    rejection_p99_ms: float
    memory_before_mb: float
    memory_most_mb: float
    usual_s: float
    recovery_s: float
    machine_load: tuple[float, float]

    @property
    def kept(self) -> float:
        """Throughput under overload as a share of the peak."""
        return self.admitted_per_s / self.peak_per_s


async def measure(plan: Plan, tell: Callable[[str], None] = lambda words: None) -> Figures:
    """Runs the plan; `tell` is told what begins."""
    load_before = os.getloadavg()[0]
    with running(plan) as router:
        async with open_channel(router.address) as channel:
            tell(f"the peak, for {plan.peak_s:g} s")
            peak_per_s, usual_s = await _peak(Asker(channel, plan), plan)
            before_mb = memory_mb(router.pid)
            tell(f"{plan.factor:g} times the peak, for {plan.overload_s:g} s")
            asker, offered_per_s = Asker(channel, plan), plan.factor * peak_per_s
            async with _memory_watched(router.pid) as samples:
                started = time.monotonic()
                overload = asyncio.create_task(asker.ask_regardless(offered_per_s, plan.overload_s))
                await asyncio.sleep(plan.overload_s)
                tell("the recovery")
                recovery_s = await _recovery(Asker(channel, plan), _RECOVERED * usual_s)
                await overload
    window = (started + plan.ramp_s, started + plan.overload_s)
    rejections = sorted(a.seconds * 1e3 for a in asker.attempts if a.outcome is Outcome.REFUSED)
    return Figures(
        peak_per_s,
        offered_per_s,
        _done_per_s(asker.attempts, *window),
        dict(Counter(attempt.outcome.value for attempt in asker.attempts)),
        _quantile(rejections, 0.5),
        _quantile(rejections, 0.99),
        before_mb,
        max(samples),
        usual_s,
        recovery_s,
        (load_before, os.getloadavg()[0]),
    )


async def _peak(asker: Asker, plan: Plan) -> tuple[float, float]:
    """Requests per second, without the first fifth, while the clients fall into step; seconds of one."""
    started = time.monotonic()
    await asker.ask_by_turns(plan.places, plan.peak_s)
    usual_s = statistics.median(attempt.seconds for attempt in asker.attempts)
    return _done_per_s(asker.attempts, started + plan.peak_s / 5, started + plan.peak_s), usual_s


async def _recovery(asker: Asker, limit_s: float) -> float:
    """Seconds until a new request takes no longer than `limit_s` again; tries a few each second till then."""
    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        probing = group.create_task(asker.ask_regardless(_PROBES_PER_S, _RECOVERY_S))
        while not (quick := _within(asker.attempts, limit_s)) and not probing.done():
            await asyncio.wait([probing], timeout=_POLL_S)
        probing.cancel()
    return min(attempt.ended_s - attempt.seconds for attempt in quick) - started if quick else _RECOVERY_S


def _within(attempts: Sequence[Attempt], limit_s: float) -> list[Attempt]:
    return [each for each in attempts if each.outcome is Outcome.DONE and each.seconds <= limit_s]


@asynccontextmanager
async def _memory_watched(pid: int) -> AsyncIterator[Sequence[float]]:
    """Samples of a process's memory in MB, one at least."""
    samples = [memory_mb(pid)]

    async def watch() -> None:
        while True:
            await asyncio.sleep(_SAMPLE_S)
            samples.append(memory_mb(pid))

    task = asyncio.create_task(watch())
    try:
        yield samples
    finally:
        task.cancel()


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    import psutil

    return float(psutil.Process(pid).memory_info().rss) / 1e6


def _done_per_s(attempts: Sequence[Attempt], start_s: float, end_s: float) -> float:
    done = sum(a.outcome is Outcome.DONE and start_s <= a.ended_s < end_s for a in attempts)
    return done / (end_s - start_s)


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else 0.0
