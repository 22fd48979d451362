"""Overload: throughput, rejections, memory and recovery of a router at four times its capacity."""

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Annotated

import grpc
import psutil
from pydantic import Field

from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.load import send_at_rate, send_in_turn
from benchmarks.harness.report import Report, Row, Table, listed
from benchmarks.harness.system import running_services, simulated_flags
from protos.flyserve.v1 import generation_pb2 as pb
from protos.flyserve.v1.generation_pb2_grpc import GenerationStub
from services.common.channel import open_channel

_SAMPLE_S = 0.5
_RECOVERED = 1.2
"""A request has recovered if it takes at most this multiple of a request at the peak: it does not queue."""
_RECOVERY_S, _PROBES_PER_S, _POLL_S = 8.0, 2.0, 0.05


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """An overload, and the peak that it is compared with.

    Attributes:
        places: Requests that decode at a time.
        queue: Requests that may wait.
        new_tokens: Tokens of each response.
        forward_s: Seconds of a forward of the simulated target, which set the capacity.
        deadline_s: Deadline of each request under overload.
        peak_s: Seconds of the peak, with one client per place.
        overload_s: Seconds of the overload.
        factor: Requests per second under overload as a multiple of the peak's.
        ramp_s: First seconds of the overload, which its throughput leaves out.
    """

    places: int = 16
    queue: int = 1024
    new_tokens: int = 16
    forward_s: Annotated[float, Quick(0.03)] = 0.06
    deadline_s: Annotated[float, Quick(2.0)] = 5.0
    peak_s: Annotated[float, Quick(3.0)] = 15.0
    overload_s: Annotated[float, Field(ge=5), Quick(6.0)] = 60.0
    factor: Annotated[float, Field(ge=1)] = 4.0
    ramp_s: float = 3.0


class Outcome(StrEnum):
    """The end of a request."""

    DONE = "done"
    REJECTED = "rejected"
    LATE = "late"
    FAILED = "failed"


_OUTCOMES = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Outcome.REJECTED,
    grpc.StatusCode.DEADLINE_EXCEEDED: Outcome.LATE,
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request: its outcome, its end on the monotonic clock, and its duration."""

    outcome: Outcome
    ended_s: float
    seconds: float


class Sender:
    """Sends requests over one connection, each with its own prompt.

    Attributes:
        attempts: The requests in the order in which they ended.
    """

    def __init__(self, channel: grpc.aio.Channel, new_tokens: int, timeout_s: float | None = None) -> None:
        self.attempts: list[Attempt] = []
        self._stub = GenerationStub(channel)
        self._new_tokens = new_tokens
        self._timeout_s = timeout_s
        self._numbers = itertools.count()

    async def send(self) -> None:
        """Send one request and record its end."""
        number, started, outcome = next(self._numbers), time.monotonic(), Outcome.DONE
        request = pb.GenerateRequest(
            prompt_token_ids=pb.TokenIds(ids=[16 + number % 4000, 16 + number // 4000, 20, 21]),
            max_new_tokens=self._new_tokens,
            speculation=pb.SpeculationParams(mode=pb.MODE_PLAIN),
        )
        try:
            await self._stub.Generate(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            outcome = _OUTCOMES.get(error.code(), Outcome.FAILED)
        ended = time.monotonic()
        self.attempts.append(Attempt(outcome, ended, ended - started))

    def done_per_s(self, start_s: float, end_s: float) -> float:
        """Return the requests per second that finished in a window."""
        done = sum(a.outcome is Outcome.DONE and start_s <= a.ended_s < end_s for a in self.attempts)
        return done / (end_s - start_s)


def run(plan: Plan, context: Context) -> Report:
    """Overload one simulated target behind one router."""
    return make_report(plan, asyncio.run(measure(plan, context.say)))


async def measure(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Row:
    """Run the plan; `say` gets a line at the start of each phase."""
    load_before = os.getloadavg()[0]
    with running_services() as services:
        costs = {"base_s": plan.forward_s, "per_token_s": 0.0, "per_token_above_s": 0.0}
        language = {"vocab_size": 4096, "response_tokens": [4000, 4000]}
        target = services.start("services.target", *simulated_flags({**language, **costs}, plan.places))
        limits = {"max_concurrent": plan.places, "max_queued": plan.queue}
        router = services.start(*services.router_command([target.address], [], limits))
        async with open_channel(router.address) as channel:
            return await _measure(plan, channel, router.process.pid, load_before, say)


async def _measure(
    plan: Plan, channel: grpc.aio.Channel, pid: int, load_before: float, say: Callable[[str], None]
) -> Row:
    say(f"the peak, for {plan.peak_s:g} s")
    peak_per_s, usual_s = await _peak(Sender(channel, plan.new_tokens), plan)
    before_mb = memory_mb(pid)
    say(f"{plan.factor:g} times the peak, for {plan.overload_s:g} s")
    sender, offered_per_s = Sender(channel, plan.new_tokens, plan.deadline_s), plan.factor * peak_per_s
    async with _memory_watched(pid) as samples, asyncio.TaskGroup() as group:
        started = time.monotonic()
        group.create_task(send_at_rate(sender.send, offered_per_s, plan.overload_s))
        await asyncio.sleep(plan.overload_s)
        say("the recovery")
        recovering = Sender(channel, plan.new_tokens, plan.deadline_s)
        recovery_s = await _recovery(recovering, _RECOVERED * usual_s)
    rejections = sorted(a.seconds * 1e3 for a in sender.attempts if a.outcome is Outcome.REJECTED)
    return Row(
        peak_per_s=peak_per_s,
        offered_per_s=offered_per_s,
        admitted_per_s=sender.done_per_s(started + plan.ramp_s, started + plan.overload_s),
        outcomes=dict(Counter(attempt.outcome.value for attempt in sender.attempts)),
        rejection_p50_ms=_quantile(rejections, 0.5),
        rejection_p99_ms=_quantile(rejections, 0.99),
        memory_before_mb=before_mb,
        memory_most_mb=max(samples),
        usual_s=usual_s,
        recovery_s=recovery_s,
        machine_load=(load_before, os.getloadavg()[0]),
    )


async def _peak(sender: Sender, plan: Plan) -> tuple[float, float]:
    """Return requests per second, without the first fifth of the time, and the seconds of one request."""
    started = time.monotonic()
    await send_in_turn(sender.send, plan.places, plan.peak_s)
    usual_s = median(attempt.seconds for attempt in sender.attempts)
    return sender.done_per_s(started + plan.peak_s / 5, started + plan.peak_s), usual_s


async def _recovery(sender: Sender, limit_s: float) -> float:
    """Send a few requests each second; return the seconds until one takes no longer than `limit_s`."""

    def fast() -> list[Attempt]:
        return [a for a in sender.attempts if a.outcome is Outcome.DONE and a.seconds <= limit_s]

    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        probing = group.create_task(send_at_rate(sender.send, _PROBES_PER_S, _RECOVERY_S))
        while not fast() and not probing.done():
            await asyncio.wait([probing], timeout=_POLL_S)
        probing.cancel()
    return min((a.ended_s - a.seconds - started for a in fast()), default=_RECOVERY_S)


@asynccontextmanager
async def _memory_watched(pid: int) -> AsyncIterator[Sequence[float]]:
    """Yield samples of a process's memory in MB, at least one."""
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
    """Return the resident memory of a process."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def _quantile(ascending: Sequence[float], share: float) -> float:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else 0.0


def make_report(plan: Plan, f: Row) -> Report:
    """Return the report."""
    report = Report("overload", None, plan, figures=f)
    report.introduction(
        "Overload",
        f"""
A router admits {plan.places} concurrent requests and queues {plan.queue}, in front of one simulated target
whose forwards take {plan.forward_s * 1e3:g} ms; each is a process of its own. The peak is the throughput of
{plan.places} clients, each of which sends its next request as soon as its last one has ended. Then
{plan.factor:g} times as many requests arrive for {plan.overload_s:g} s, whether or not responses arrive, each
with a deadline of {plan.deadline_s:g} s.
""",
    )
    kept = f.admitted_per_s / f.peak_per_s
    rows = {
        "peak, requests/s": f"{f.peak_per_s:.1f}",
        "offered, requests/s": f"{f.offered_per_s:.1f}",
        "finished in time, requests/s": f"{f.admitted_per_s:.1f} ({kept:.0%} of the peak)",
        "requests": ", ".join(listed(f.outcomes)),
        "rejected within, ms": f"{f.rejection_p50_ms:.1f} (median), {f.rejection_p99_ms:.1f} (99%)",
        "router's memory, MB": f"{f.memory_before_mb:.0f} before, {f.memory_most_mb:.0f} at most",
        "machine's load average": " before, ".join(f"{load:.1f}" for load in f.machine_load) + " after",
        "a new request is as fast as at the peak after, s": f"{f.recovery_s:.1f}",
    }
    report.table(Table("overload", ("", ""), tuple(rows.items())))
    report.text("*Late* requests were admitted and did not finish by their deadlines.")
    return report
