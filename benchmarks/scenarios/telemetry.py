"""Telemetry: CPU time of a router per emitted token, with metrics and traces and without."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from benchmarks.harness.client import run_block, speculation
from benchmarks.harness.command import Context
from benchmarks.harness.load import turns
from benchmarks.harness.machine import Machine
from benchmarks.harness.prompts import random_prompts
from benchmarks.harness.report import Columns, Report, Table
from benchmarks.harness.statistics import median_ratio
from benchmarks.harness.system import METRICS, NO_COST, Service, running_services, simulated_flags
from fly.types import Mode
from flyserve.bench.progress import Advance, progress_bar
from flyserve.bench.statistics import Interval

LIMIT = 1.1
"""Largest acceptable cost: CPU time per token with telemetry divided by that without."""
OFF = "off"
_MODES = (Mode.PLAIN, Mode.FLY)
_SETTLE_S = 0.6
"""Time for the spans of a block to leave: three times the export delay."""
_EXPORT_DELAY_MS = "200"
"""Export delay of spans, instead of the usual 5 s, so that each block pays for its own."""
_WORDS, _PROMPT_TOKENS = range(16, 1024), 32
_INTRODUCTION = f"""
The figure is the CPU time of the router's process per emitted token, client streams included, by the kernel's
clock of the process: all threads count, those of metrics and of the exporter too. There is one router per
setting. All routers share one simulated target and one simulated drafter, whose forwards take no time. Blocks
of the same requests go to one router after the other, in an order that rotates. A block ends when its metrics
have been scraped and its spans have been exported (after 0.2 s here, instead of 5). The first block of each
router does not count. Ratios are to *off* in the same repetition: their median, and its 95% interval over
resamples of the repetitions. *off, once more* is a second router without telemetry, which shows the precision
of the comparison. The goal is at most {LIMIT:g}x.

In mode `plain` a round emits one token, so this mode is the most expensive case for telemetry per round.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring.

    Attributes:
        repeat: Restarts of all processes; two processes of one program differ, too.
        blocks: Blocks of every setting in every mode after each restart.
        requests: Requests of one block.
        at_once: Concurrent requests.
        new_tokens: Tokens of every response.
    """

    repeat: int = 6
    blocks: int = 4
    requests: int = 16
    at_once: int = 4
    new_tokens: int = 128

    def quick(self) -> "Plan":
        """Return a plan of less than a minute."""
        return replace(self, repeat=1, blocks=2, requests=8)


Blocks = dict[str, dict[str, list[float]]]
"""Microseconds of CPU time per token of each block, by mode and setting."""


def settings(endpoint: str) -> dict[str, dict[str, Any]]:
    """Return the telemetry section of each router; the first one is the baseline.

    Args:
        endpoint: Address of the collector.
    """
    traced = {**METRICS, "otlp_endpoint": endpoint}
    return {
        OFF: {},
        "off, once more": {},
        "metrics": dict(METRICS),
        "metrics, a tenth of the requests traced (default)": traced,
        "metrics, every request traced": {**traced, "trace_ratio": 1.0},
    }


class _Collector(TraceServiceServicer):
    """Counts the spans that arrive, and drops them."""

    num_spans = 0

    def Export(self, request: Any, context: Any) -> Any:
        self.num_spans += sum(
            len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans
        )
        return ExportTraceServiceResponse()


@dataclass(frozen=True, slots=True)
class Launch:
    """The blocks and spans between two restarts."""

    blocks: Blocks
    num_spans: int


@dataclass(frozen=True, slots=True)
class Cost:
    """One setting in one mode.

    Attributes:
        cpu_us: Median CPU time per emitted token, in microseconds.
        ratio: CPU time divided by that of the baseline in the same repetition.
        blocks_us: CPU time per token of each block.
    """

    setting: str
    mode: str
    cpu_us: float
    ratio: Interval
    blocks_us: tuple[float, ...]


def run(plan: Plan, context: Context) -> Report:
    """Measure every setting in every mode, restart by restart."""
    launches, names = [], settings("")
    for number in range(plan.repeat):

        def measure() -> Launch:
            total = len(_MODES) * len(names) * (plan.blocks + 1)
            with progress_bar(context.console, total, "blocks") as advance:
                return _measure(plan, advance)

        launches.append(context.parts.measure(f"launch-{number}", Launch, measure))
    costs = [
        cost
        for mode in _MODES
        for cost in compare(
            {name: [us for x in launches for us in x.blocks[mode][name]] for name in names}, mode
        )
    ]
    return make_report(context.machine, plan, costs, sum(each.num_spans for each in launches))


def _measure(plan: Plan, advance: Advance) -> Launch:
    with _running() as (routers, collector):
        blocks = {mode.value: _measure_mode(routers, mode, plan, advance) for mode in _MODES}
        return Launch(blocks, collector.num_spans)


def _measure_mode(
    routers: Mapping[str, Service], mode: Mode, plan: Plan, advance: Advance
) -> dict[str, list[float]]:
    """Return microseconds per token of every block but the first, by setting."""
    blocks: dict[str, list[float]] = {name: [] for name in routers}
    for turn, name in turns(tuple(routers), plan.blocks + 1):
        router, way = routers[name], speculation(mode)
        prompts = random_prompts(_WORDS, plan.requests, _PROMPT_TOKENS, seed=turn)

        def settle(router: Service = router) -> None:
            router.scrape()
            time.sleep(_SETTLE_S)

        block = run_block(router, name, way, prompts, plan.at_once, plan.new_tokens, str(turn), settle)
        if turn:
            blocks[name].append(1e3 * block.cpu_ms)
        advance()
    return blocks


@contextmanager
def _running() -> Iterator[tuple[dict[str, Service], _Collector]]:
    """Yield one router per setting, all in front of the same services, and the collector of their spans."""
    collector, server = _Collector(), grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with running_services(OTEL_BSP_SCHEDULE_DELAY=_EXPORT_DELAY_MS, PYTHONHASHSEED="0") as services:
            model = {**NO_COST, "response_tokens": [100000, 100000]}
            target = services.start("services.target", *simulated_flags(model))
            drafter = services.start("services.drafter", *simulated_flags({**model, "agreement": 0.9}))
            addresses = [target.address], [drafter.address]
            yield (
                {
                    name: services.start(*services.router_command(*addresses, {"telemetry": section}))
                    for name, section in settings(endpoint).items()
                },
                collector,
            )
    finally:
        server.stop(None).wait()


def compare(blocks: Mapping[str, Sequence[float]], mode: str) -> list[Cost]:
    """Compare every setting with the baseline, block by block of the same repetition.

    Args:
        blocks: Microseconds per token by setting, the same number for each.
        mode: Mode of the requests.
    """
    return [
        Cost(name, mode, median(own), median_ratio(own, blocks[OFF]), tuple(own))
        for name, own in blocks.items()
    ]


_COLUMNS: Columns[Cost] = {
    "mode": lambda cost: cost.mode,
    "telemetry": lambda cost: cost.setting,
    "CPU us per token": lambda cost: f"{cost.cpu_us:.1f}",
    "by off (95% interval)": lambda cost: (
        f"{cost.ratio.value:.3f} ({cost.ratio.low:.3f}-{cost.ratio.high:.3f})"
    ),
}


def make_report(machine: Machine, plan: Plan, costs: Sequence[Cost], num_spans: int) -> Report:
    """Return the report."""
    report = Report("telemetry", machine, plan, spans=num_spans, costs=costs)
    report.introduction("The cost of telemetry in a router", _INTRODUCTION)
    report.text(
        f"{plan.repeat} launches of all processes, {plan.blocks} blocks of each router in each,"
        f" {plan.requests} requests per block, {plan.at_once} concurrent, {plan.new_tokens} tokens each."
        f" The collector received {num_spans} spans."
    )
    report.table(Table.of("CPU time of the router", _COLUMNS, costs))
    return report
