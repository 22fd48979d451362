"""Overload: a router at four times its capacity, also with too little behind it."""

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import ceil
from statistics import median
from typing import Annotated

import psutil
from pydantic import Field

from benchmarks.harness.client import PLAIN, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.load import every, send_at_rate, send_in_turn
from benchmarks.harness.report import Report, Row, Table, listed
from benchmarks.harness.statistics import Percentiles, percentiles
from benchmarks.harness.system import running_services, simulated_flags
from fly.errors import DeadlineExceeded, FlyServeError, Overloaded
from fly.request import SpeculationParams
from fly.types import Mode
from flyserve import AsyncClient
from services.engine.memory.slot_allocator import GRAIN

_SAMPLE_S = 0.5
_RECOVERED = 1.2
"""A request has recovered if it takes at most this multiple of a request at the peak: it does not queue."""
_RECOVERY_S, _PROBES_PER_S, _POLL_S = 8.0, 2.0, 0.05
_PROMPT_TOKENS, _DRAFT_LENGTH = 4, 7


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of the services behind the router, as shares of what its slots need.

    Attributes:
        places: Sequences of the target.
        memory: KV memory of the target.
        drafts: Sequences of the drafter; None decodes without one.
    """

    places: float = 1.0
    memory: float = 1.0
    drafts: float | None = None


CAPACITIES = {
    "enough": Capacity(),
    "half the places": Capacity(places=0.5),
    "a third of the KV memory": Capacity(memory=1 / 3),
    "drafters for a quarter": Capacity(drafts=0.25),
}
PARTS = tuple(CAPACITIES)


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """Overloads, each with the peak that it is compared with.

    Attributes:
        places: Requests that the router lets decode at a time.
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
    overload_s: Annotated[float, Field(ge=5), Quick(6.0)] = 30.0
    factor: Annotated[float, Field(ge=1)] = 4.0
    ramp_s: float = 3.0

    @property
    def kv_tokens(self) -> int:
        """KV positions for all slots of the router."""
        return self.places * -(-(_PROMPT_TOKENS + self.new_tokens) // GRAIN) * GRAIN


class Outcome(StrEnum):
    """The end of a request."""

    DONE = "done"
    REJECTED = "rejected"
    LATE = "late"
    FAILED = "failed"


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

    def __init__(
        self, client: AsyncClient, new_tokens: int, way: SpeculationParams, timeout_s: float | None = None
    ) -> None:
        self.attempts: list[Attempt] = []
        self._client, self._new_tokens, self._way, self._timeout_s = client, new_tokens, way, timeout_s
        self._numbers = itertools.count()

    async def send(self) -> None:
        """Send one request and record its end."""
        number, started, outcome = next(self._numbers), time.monotonic(), Outcome.DONE
        prompt = (16 + number % 4000, 16 + number // 4000, 20, 21)
        try:
            await self._client.generate(
                prompt, self._new_tokens, speculation=self._way, timeout_s=self._timeout_s
            )
        except Overloaded:
            outcome = Outcome.REJECTED
        except DeadlineExceeded:
            outcome = Outcome.LATE
        except FlyServeError:
            outcome = Outcome.FAILED
        ended = time.monotonic()
        self.attempts.append(Attempt(outcome, ended, ended - started))

    def done_per_s(self, start_s: float, end_s: float) -> float:
        """Return the requests per second that finished in a window."""
        done = sum(a.outcome is Outcome.DONE and start_s <= a.ended_s < end_s for a in self.attempts)
        return done / (end_s - start_s)


def run(plan: Plan, context: Context) -> Report:
    """Overload one simulated target behind one router, with each capacity."""
    chosen = context.chosen(PARTS)
    return make_report(plan, {name: asyncio.run(measure(plan, name, context.say)) for name in chosen})


async def measure(
    plan: Plan, capacity: str = "enough", say: Callable[[str], None] = lambda text: None
) -> Row:
    """Run the plan with a capacity, a name in `CAPACITIES`; `say` gets a line at the start of each phase."""
    load_before, held = os.getloadavg()[0], CAPACITIES[capacity]
    costs = {"base_s": plan.forward_s, "per_token_s": 0.0, "per_token_above_s": 0.0}
    model = {"vocab_size": 4096, "response_tokens": [4000, 4000], **costs}

    def service(role: str, parameters: Mapping[str, object], places: float, memory: float) -> Sequence[str]:
        limits = ceil(places * plan.places), ceil(memory * plan.kv_tokens)
        return [services.start(f"services.{role}", *simulated_flags(parameters, *limits)).address]

    with running_services() as services:
        targets = service("target", model, held.places, held.memory)
        drafters: Sequence[str] = []
        if held.drafts is not None:
            drafting = {**model, "base_s": plan.forward_s / 20, "agreement": 0.9}
            drafters = service("drafter", drafting, held.drafts, 1.0)
        limits = {"max_concurrent": plan.places, "max_queued": plan.queue}
        router = services.start(*services.router_command(targets, drafters, limits))
        way = PLAIN if held.drafts is None else speculation(Mode.FLY, _DRAFT_LENGTH)
        async with AsyncClient(router.address, retries=0) as client:
            make_sender = partial(Sender, client, plan.new_tokens, way)
            say(f"{capacity}:")
            return await _measure(plan, make_sender, router.process.pid, load_before, say)


async def _measure(
    plan: Plan, make_sender: Callable[..., Sender], pid: int, load_before: float, say: Callable[[str], None]
) -> Row:
    say(f"the peak, for {plan.peak_s:g} s")
    peak_per_s, usual_s = await _peak(make_sender(), plan)
    before_mb = memory_mb(pid)
    say(f"{plan.factor:g} times the peak, for {plan.overload_s:g} s")
    sender, offered_per_s = make_sender(plan.deadline_s), plan.factor * peak_per_s
    samples = [before_mb]

    async def sample() -> None:
        samples.append(memory_mb(pid))

    async with every(_SAMPLE_S, sample), asyncio.TaskGroup() as group:
        started = time.monotonic()
        group.create_task(send_at_rate(sender.send, offered_per_s, plan.overload_s))
        await asyncio.sleep(plan.overload_s)
        say("the recovery")
        recovering = make_sender(plan.deadline_s)
        recovery_s = await _recovery(recovering, _RECOVERED * usual_s)
    rejections = [(a.seconds, 1) for a in sender.attempts if a.outcome is Outcome.REJECTED]
    waits = percentiles(rejections) or Percentiles(0.0, 0.0, 0.0)
    return Row(
        peak_per_s=peak_per_s,
        offered_per_s=offered_per_s,
        admitted_per_s=sender.done_per_s(started + plan.ramp_s, started + plan.overload_s),
        outcomes=dict(Counter(attempt.outcome.value for attempt in sender.attempts)),
        rejection_p50_ms=1e3 * waits.p50,
        rejection_p99_ms=1e3 * waits.p99,
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


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


def make_report(plan: Plan, figures: Mapping[str, Row]) -> Report:
    """Return the report of the capacities that were measured, by name."""
    shown = [_shown(each) for each in figures.values()]
    rows = [(head, *(each[head] for each in shown)) for head in shown[0]]
    table = Table("overload", ("", *figures), tuple(rows))
    return Report("load-overload", None, plan, figures=dict(figures)).fill(rows=table)


def _shown(f: Row) -> dict[str, str]:
    kept = f.admitted_per_s / f.peak_per_s
    return {
        "peak, requests/s": f"{f.peak_per_s:.1f}",
        "offered, requests/s": f"{f.offered_per_s:.1f}",
        "finished in time, requests/s": f"{f.admitted_per_s:.1f} ({kept:.0%} of the peak)",
        "requests": listed(f.outcomes),
        "rejected within, ms": f"{f.rejection_p50_ms:.1f} (median), {f.rejection_p99_ms:.1f} (99%)",
        "router's memory, MB": f"{f.memory_before_mb:.0f} before, {f.memory_most_mb:.0f} at most",
        "machine's load average": " before, ".join(f"{load:.1f}" for load in f.machine_load) + " after",
        "a new request is as fast as at the peak after, s": f"{f.recovery_s:.1f}",
    }
