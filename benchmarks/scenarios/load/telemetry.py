"""Telemetry: CPU time of a router per emitted token, with metrics and traces and without."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

from benchmarks.harness.client import random_prompts, run_block, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.machine import Machine
from benchmarks.harness.report import Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import median_ratio
from benchmarks.harness.system import METRICS, NO_COST, Service, running_services
from fly.types import Mode

LIMIT = 1.1
"""Largest acceptable cost: CPU time per token with telemetry divided by that without."""
OFF = "off"
_MODES = (Mode.PLAIN, Mode.FLY)
_SETTLE_S = 0.6
"""Time for the spans of a block to leave: three times the export delay."""
_EXPORT_DELAY_MS = "200"
"""Export delay of spans, instead of the usual 5 s, so that each block pays for its own."""
_WORDS, _PROMPT_TOKENS = range(16, 1024), 32


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        repeat: Restarts of all processes; two processes of one program differ, too.
        blocks: Blocks of every setting in every mode after each restart.
        requests: Requests of one block.
        at_once: Concurrent requests.
        new_tokens: Tokens of every response.
    """

    repeat: Annotated[int, Quick(1)] = 6
    blocks: Annotated[int, Quick(2)] = 4
    requests: Annotated[int, Quick(8)] = 16
    at_once: int = 4
    new_tokens: int = 128


Blocks = dict[str, dict[str, list[float]]]
"""Microseconds of CPU time per token of each block, by mode and setting."""


def settings(endpoint: str) -> dict[str, dict[str, Any]]:
    """Return the telemetry section of each router, with the collector at `endpoint`; the first is off."""
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


def run(plan: Plan, context: Context) -> Report:
    """Measure every setting in every mode, restart by restart."""
    launches = [
        context.parts.measure(f"launch-{number}", Launch, partial(_measure, plan, context))
        for number in range(plan.repeat)
    ]
    costs = [
        cost
        for mode in _MODES
        for cost in compare(
            {name: [us for x in launches for us in x.blocks[mode][name]] for name in settings("")}, mode
        )
    ]
    return make_report(context.machine, plan, costs, sum(each.num_spans for each in launches))


def _measure(plan: Plan, context: Context) -> Launch:
    with _running() as (routers, collector):
        blocks = {mode.value: _measure_mode(routers, mode, plan, context) for mode in _MODES}
        return Launch(blocks, collector.num_spans)


def _measure_mode(
    routers: Mapping[str, Service], mode: Mode, plan: Plan, context: Context
) -> dict[str, list[float]]:
    """Return microseconds per token of every block but the first, by setting."""

    def measure(name: str, turn: int) -> float:
        def settle() -> None:
            routers[name].scrape()
            time.sleep(_SETTLE_S)

        prompts = random_prompts(_WORDS, plan.requests, _PROMPT_TOKENS, seed=turn)
        block = run_block(
            routers[name], name, speculation(mode), prompts, plan.at_once, plan.new_tokens, str(turn), settle
        )
        return 1e3 * block.cpu_ms

    return context.interleave(f"blocks, mode {mode.value}", tuple(routers), plan.blocks, measure)


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
            replicas = services.start_replicas(model, agreement=0.9)
            yield (
                {
                    name: services.start(*services.router_command(*replicas, {"telemetry": section}))
                    for name, section in settings(endpoint).items()
                },
                collector,
            )
    finally:
        server.stop(None).wait()


FIGURES: tuple[Figure[tuple[str, str, Sequence[float], Sequence[float]]], ...] = (
    Figure("mode", lambda c: c[0], {"mode": "{}"}),
    Figure("setting", lambda c: c[1], {"telemetry": "{}"}),
    Figure("cpu_us", lambda c: median(c[2]), {"CPU us per token": "{:.1f}"}),
    Figure(
        "ratio",
        lambda c: median_ratio(c[2], c[3]),
        {"by off (95% interval)": "{0.value:.3f} ({0.low:.3f}-{0.high:.3f})"},
    ),
    Figure("blocks_us", lambda c: c[2]),
)
"""The figures of a setting in one mode: from mode, setting, its blocks and those of the baseline."""


def compare(blocks: Mapping[str, Sequence[float]], mode: str) -> list[Row]:
    """Compare every setting with the baseline, block by block of the same repetition."""
    return make_rows(FIGURES, [(mode, name, own, blocks[OFF]) for name, own in blocks.items()])


def make_report(machine: Machine, plan: Plan, costs: Sequence[Row], num_spans: int) -> Report:
    """Return the report."""
    report = Report("load-telemetry", machine, plan, spans=num_spans, costs=costs)
    return report.fill(limit=LIMIT, routers=Table.of("CPU time of the router", FIGURES, costs))
