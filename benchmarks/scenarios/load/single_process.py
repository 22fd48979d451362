"""One deployment in one process, or with a process for each service: start, memory, speed (15 minutes)."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from uuid import uuid4

import psutil
import yaml
from pydantic import Field

from benchmarks.harness.client import PLAIN, demo_prompts, generate, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Table, make_rows
from benchmarks.harness.statistics import Goal, Spread, median_ratio, spread
from benchmarks.harness.system import Service, Services, running_services
from fly.types import Mode
from flyserve.bench.statistics import Interval
from flyserve.cli.up import DEMO
from flyserve.client import Client

SINGLE, SEPARATE = "one process", "a process for each service"
PLACES: Mapping[str, tuple[str, ...]] = {SEPARATE: (), SINGLE: ("--single-process",)}
MODES = {"plain": PLAIN, "exact": speculation(Mode.EXACT), "FLy": speculation(Mode.FLY)}
PARTS = ("starts", "speed")
_MAX_NEW_TOKENS = 512
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        starts: Starts of every deployment.
        clients: Numbers of concurrent requests.
        blocks: Blocks of requests of every deployment and mode, for each number of clients.
    """

    starts: Annotated[int, Field(ge=1), Quick(1)] = 5
    clients: Annotated[tuple[int, ...], Quick((1, 4))] = (1, 4, 16)
    blocks: Annotated[int, Field(ge=1), Quick(2)] = 12


@dataclass(frozen=True, slots=True)
class Start:
    """A start of a deployment, and its memory after a request.

    Attributes:
        memory: Bytes of all its processes; what several of them share counts once.
    """

    seconds: float
    processes: int
    memory: int


@dataclass(frozen=True, slots=True)
class Sent:
    """Concurrent requests of one way of decoding.

    Attributes:
        seconds: From the first call to the last response.
    """

    seconds: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens of all requests per second."""
        return self.tokens / self.seconds


Starts = dict[str, list[Start]]
"""By place."""
Speeds = dict[int, dict[str, list[Sent]]]
"""By number of clients, then by place and mode."""


def run(plan: Plan, context: Context) -> Report:
    """Measure starts, then speed, by turns."""
    chosen, measured = context.chosen(PARTS), context.parts.measure
    starts = measured("starts", Starts, partial(measure_starts, plan, context)) if "starts" in chosen else {}
    speeds = measured("speed", Speeds, partial(measure_speeds, plan, context)) if "speed" in chosen else {}
    return make_report(plan, context, starts, speeds)


def start(services: Services, place: str, most_clients: int) -> Service:
    """Start the demo with one target."""
    content = yaml.safe_load(DEMO.read_text("utf-8"))
    for tier in ("target", "drafter"):
        content[tier] |= {"model": str(DEMO.parent / content[tier]["model"]), "replicas": 1}
    content["router"] |= {"grpc_port": 0, "http_port": 0, "max_concurrent": max(most_clients, 16)}
    file = services.new_folder("deployment") / "deployment.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return services.start("flyserve", "up", str(file), *PLACES[place])


def measure_starts(plan: Plan, context: Context) -> Starts:
    """Start every deployment by turns; each answers one request before its memory is read."""
    (prompt,) = demo_prompts(1)

    def measure(place: str, _: int) -> Start:
        with running_services() as services:
            begin_s = time.perf_counter()
            service = start(services, place, 1)
            seconds = time.perf_counter() - begin_s
            with Client(service.address) as client:
                generate(client, prompt, _MAX_NEW_TOKENS, MODES["FLy"])
            found = psutil.Process(service.process.pid)
            processes = [found, *found.children(recursive=True)]
            return Start(seconds, len(processes), sum(each.memory_full_info().pss for each in processes))

    return context.interleave("starts", tuple(PLACES), plan.starts, measure)


def measure_speeds(plan: Plan, context: Context) -> Speeds:
    """Send blocks of requests to both deployments by turns."""
    prompts, salt, most = demo_prompts(max(plan.clients) * plan.blocks), uuid4().hex, max(plan.clients)
    with running_services() as services, ExitStack() as stack, ThreadPoolExecutor(most) as pool:
        clients = {
            place: stack.enter_context(Client(start(services, place, most).address)) for place in PLACES
        }

        def send(count: int, name: str, turn: int) -> Sent:
            place, mode = name.split(", ")

            def ask(number: int) -> int:
                salted = f"{salt}/{name}/{count}/{turn}/{number}"
                prompt = prompts[max(0, turn) * count + number]
                response, _ = generate(clients[place], prompt, _MAX_NEW_TOKENS, MODES[mode], salted)
                return response.statistics.emitted

            begin_s = time.perf_counter()
            tokens = sum(pool.map(ask, range(count)))
            return Sent(time.perf_counter() - begin_s, tokens)

        names = [_name(place, mode) for mode in MODES for place in PLACES]
        return {
            count: context.interleave(f"blocks of {count}", names, plan.blocks, partial(send, count))
            for count in plan.clients
        }


def _name(place: str, mode: str) -> str:
    return f"{place}, {mode}"


STARTS: tuple[Figure[tuple[str, Sequence[Start]]], ...] = (
    Figure("name", lambda c: c[0], {"deployment": "{}"}),
    Figure("processes", lambda c: c[1][-1].processes, {"processes": "{}"}),
    Figure(
        "seconds",
        lambda c: spread([each.seconds for each in c[1]]),
        {"start, s": "{0.value:.1f}", "least to most": "{0.least:.1f} to {0.most:.1f}"},
    ),
    Figure(
        "memory", lambda c: spread([each.memory / _MIB for each in c[1]]), {"memory, MiB": "{0.value:,.0f}"}
    ),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """The blocks of one number of requests and mode in both deployments, and plain decoding's in the first.

    Attributes:
        plain: Blocks of plain decoding with a process for each service.
    """

    requests: int
    mode: str
    single: Sequence[Sent]
    separate: Sequence[Sent]
    plain: Sequence[Sent]


SPEEDS: tuple[Figure[Compared], ...] = (
    Figure("requests", lambda c: c.requests, {"requests at once": "{}"}),
    Figure("mode", lambda c: c.mode, {"mode": "{}"}),
    Figure("separate", lambda c: _speed(c.separate), {SEPARATE: "{0.value:,.0f}"}),
    Figure("single", lambda c: _speed(c.single), {SINGLE: "{0.value:,.0f}"}),
    Figure("ratio", lambda c: _ratio(c.single, c.separate), {"ratio": TIMES, "95% interval": AROUND}),
    Figure("separate_by_plain", lambda c: _ratio(c.separate, c.plain), {f"{SEPARATE}, by plain": TIMES}),
    Figure("single_by_plain", lambda c: _ratio(c.single, c.plain), {f"{SINGLE}, by that plain": TIMES}),
)


def make_report(
    plan: Plan, context: Context, starts: Mapping[str, Sequence[Start]], speeds: Speeds
) -> Report:
    """Return the report of the parts that were measured."""
    start_rows = make_rows(STARTS, starts.items())
    speed_rows = make_rows(SPEEDS, [each for count in speeds for each in _compared(count, speeds[count])])
    goals = [
        Goal(f"{row.requests} at once, {row.mode}: one process by several", 1.0, row.ratio)
        for row in speed_rows
    ]
    return Report(
        "load-single_process", context.machine, plan, starts=start_rows, speeds=speed_rows, sent=speeds
    ).fill(
        targets=goals,
        tables=[
            Table.of("Start and memory", STARTS, start_rows),
            Table.of("Tokens per second of all requests", SPEEDS, speed_rows),
        ],
        most_tokens=_MAX_NEW_TOKENS,
    )


def _compared(count: int, sent: Mapping[str, Sequence[Sent]]) -> list[Compared]:
    plain = sent[_name(SEPARATE, "plain")]
    return [
        Compared(count, mode, sent[_name(SINGLE, mode)], sent[_name(SEPARATE, mode)], plain) for mode in MODES
    ]


def _speed(sent: Sequence[Sent]) -> Spread:
    return spread([each.tokens_per_s for each in sent])


def _ratio(sent: Sequence[Sent], base: Sequence[Sent]) -> Interval:
    return median_ratio([each.tokens_per_s for each in sent], [each.tokens_per_s for each in base])
