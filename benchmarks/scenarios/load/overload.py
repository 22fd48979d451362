"""Overload: a router at four times its capacity, also with too little behind it."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from typing import Annotated, NamedTuple

import psutil
from pydantic import Field

from benchmarks.harness.client import PLAIN, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.load import every, send_at_rate
from benchmarks.harness.report import Figure, Report, Row, Table, listed, make_rows
from benchmarks.harness.statistics import Percentiles, percentiles
from benchmarks.harness.system import running_services, simulated_flags
from flyserve import AsyncClient
from flyserve.core.errors import DeadlineExceeded, FlyServeError, NotReady, Overloaded
from flyserve.core.request import SpeculationParams
from flyserve.core.types import Mode
from services.engine.memory.slot_allocator import GRAIN

_SAMPLE_S = 0.5
_PROMPT_TOKENS, _DRAFT_LENGTH = 4, 7


class Capacity(NamedTuple):
    """Capacity behind the router, as shares of what its slots need: places and KV memory of the target.

    Attributes:
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


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """Overloads, each with the peak that it is compared with.

    Attributes:
        places: Requests that the router lets decode at a time.
        queue: Requests that may wait.
        new_tokens: Tokens of each response.
        forward_s: Seconds of a forward of the simulated target, which set the capacity.
        deadline_s: Deadline of each request.
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


@dataclass(slots=True)
class Sender:
    """Sends requests over one connection, each with its own prompt.

    Attributes:
        ended: The end of each request (done, rejected, late, failed), its time, and its duration.
    """

    client: AsyncClient
    plan: Plan
    way: SpeculationParams
    ended: list[tuple[str, float, float]] = field(default_factory=list)
    _number: int = 0

    async def send(self) -> None:
        """Send one request and record its end."""
        number, started, outcome = self._number, time.monotonic(), "done"
        self._number += 1
        try:
            await self.client.generate(
                prompt(number), self.plan.new_tokens, speculation=self.way, timeout_s=self.plan.deadline_s
            )
        except Overloaded:
            outcome = "rejected"
        except DeadlineExceeded:
            outcome = "late"
        except FlyServeError:
            outcome = "failed"
        ended = time.monotonic()
        self.ended.append((outcome, ended, ended - started))

    def done_per_s(self, begin_s: float, end_s: float) -> float:
        """Return the requests per second that were finished between two times."""
        done = sum(outcome == "done" and begin_s <= at_s < end_s for outcome, at_s, _ in self.ended)
        return done / (end_s - begin_s)


def prompt(number: int) -> Sequence[int]:
    """Return the prompt of a request; no two requests share one."""
    return (16 + number % 4000, 16 + number // 4000, 20, 21)


def run(plan: Plan, context: Context) -> Report:
    """Overload one simulated target behind one router, with each capacity."""
    return make_report(plan, {name: asyncio.run(measure(plan, name, context.say)) for name in CAPACITIES})


async def measure(
    plan: Plan, capacity: str = "enough", say: Callable[[str], None] = lambda text: None
) -> Row:
    """Run the plan with a capacity, a name in `CAPACITIES`; `say` gets a line at the start of each phase."""
    held = CAPACITIES[capacity]
    costs = {"base_s": plan.forward_s, "per_token_s": 0.0, "per_token_above_s": 0.0}
    model = {"vocab_size": 4096, "response_tokens": [4000, 4000], **costs}
    with running_services() as services:

        def start(role: str, parameters: Mapping[str, object], places: float, memory: float) -> list[str]:
            limits = ceil(places * plan.places), ceil(memory * plan.kv_tokens)
            return [services.start(f"services.{role}", *simulated_flags(parameters, *limits)).address]

        targets, drafters, way = start("target", model, held.places, held.memory), list[str](), PLAIN
        if held.drafts is not None:
            drafting = {**model, "base_s": plan.forward_s / 20, "agreement": 0.9}
            drafters, way = start("drafter", drafting, held.drafts, 1.0), speculation(Mode.FLY, _DRAFT_LENGTH)
        limits = {"max_concurrent": plan.places, "max_queued": plan.queue}
        router = services.start(*services.router_command(targets, drafters, limits))
        async with AsyncClient(router.address, retries=0) as client:
            say(f"{capacity}: the peak for {plan.peak_s:g} s, then the overload for {plan.overload_s:g} s")
            return await _measure(plan, client, way, router.process.pid)


async def _measure(plan: Plan, client: AsyncClient, way: SpeculationParams, pid: int) -> Row:
    peak_per_s = await _peak(plan, client, way)
    before_mb, offered_per_s = memory_mb(pid), plan.factor * peak_per_s
    sender, samples = Sender(client, plan, way), [before_mb]

    async def sample() -> None:
        samples.append(memory_mb(pid))

    async with every(_SAMPLE_S, sample):
        started = time.monotonic()
        await send_at_rate(sender.send, offered_per_s, plan.overload_s)
    rejections = [(seconds, 1) for outcome, _, seconds in sender.ended if outcome == "rejected"]
    waits = percentiles(rejections) or Percentiles(0.0, 0.0, 0.0)
    return Row(
        peak_per_s=peak_per_s,
        offered_per_s=offered_per_s,
        admitted_per_s=sender.done_per_s(started + plan.ramp_s, started + plan.overload_s),
        outcomes=dict(Counter(outcome for outcome, _, _ in sender.ended)),
        rejection_p50_ms=1e3 * waits.p50,
        rejection_p99_ms=1e3 * waits.p99,
        memory_before_mb=before_mb,
        memory_most_mb=max(samples),
    )


async def _peak(plan: Plan, client: AsyncClient, way: SpeculationParams) -> float:
    """Return the requests per second of one client per place, without the first fifth of the time.

    Raises:
        NotReady: A request failed, or none was finished in time.
    """
    sender, started = Sender(client, plan, way), time.monotonic()
    response_s = plan.new_tokens * plan.forward_s  # clients in step would end by batches in the window

    async def send_in_turn(index: int) -> None:
        await asyncio.sleep(response_s * index / plan.places)
        while True:
            await sender.send()

    with suppress(TimeoutError):
        async with asyncio.timeout(plan.peak_s), asyncio.TaskGroup() as clients:
            for index in range(plan.places):
                clients.create_task(send_in_turn(index))
    ended = Counter(outcome for outcome, _, _ in sender.ended)
    if not ended["done"] or ended["failed"]:
        raise NotReady(f"the peak cannot be measured: {listed(ended)}")
    return sender.done_per_s(started + plan.peak_s / 5, started + plan.peak_s)


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


FIGURES: tuple[Figure[tuple[str, Row]], ...] = (
    Figure("capacity", lambda f: f[0], {"capacity": "{}"}),
    Figure("peak", lambda f: f[1].peak_per_s, {"peak, requests/s": "{:.1f}"}),
    Figure("offered", lambda f: f[1].offered_per_s, {"offered": "{:.1f}"}),
    Figure("admitted", lambda f: f[1].admitted_per_s, {"finished in time": "{:.1f}"}),
    Figure("kept", lambda f: f[1].admitted_per_s / f[1].peak_per_s, {"of the peak": "{:.0%}"}),
    Figure("outcomes", lambda f: f[1].outcomes, {"requests": listed}),
    Figure("rejection_p50", lambda f: f[1].rejection_p50_ms, {"rejected within, median, ms": "{:.1f}"}),
    Figure("rejection_p99", lambda f: f[1].rejection_p99_ms, {"99%, ms": "{:.1f}"}),
    Figure("memory_before", lambda f: f[1].memory_before_mb, {"router before, MB": "{:.0f}"}),
    Figure("memory_most", lambda f: f[1].memory_most_mb, {"at most, MB": "{:.0f}"}),
)
_SHOWN = ("peak, requests/s", "of the peak", "requests", "99%, ms")


def make_report(plan: Plan, measured: Mapping[str, Row]) -> Report:
    """Return the report of the capacities that were measured, by name."""
    rows = make_rows(FIGURES, measured.items())
    report = Report("load-overload", None, plan, figures=rows)
    return report.fill(rows=Table.of("overload", FIGURES, rows), shown=_SHOWN)
