"""The report of the scenario `open_loop`."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import median_ratio, spread
from benchmarks.scenarios.open_loop.aiperf import Run
from benchmarks.scenarios.open_loop.plan import BASELINE, SETTINGS, Plan, Runs

_SHOWN = ("setting", "response p50, s", "times as fast as plain", "good")
Compared = tuple[str, str, Sequence[Run], Sequence[Run]]
"""A load, a setting, its runs, and those of plain decoding."""


def _spread(name: str, scale: float, head: str, form: str) -> Figure[Compared]:
    return Figure(
        name,
        lambda c: spread([scale * getattr(each, name) for each in c[2]]),
        {head: f"{{.value:{form}}}"},
    )


_SETTING: Figure[Compared] = Figure("setting", lambda c: c[1], {"setting": "{}"})
CAPACITY: tuple[Figure[Compared], ...] = (
    _SETTING,
    _spread("requests_per_s", 1, "requests/s", ".2f"),
    _spread("tokens_per_s", 1, "tokens/s", ".0f"),
    Figure(
        "by_plain",
        lambda c: median_ratio([each.tokens_per_s for each in c[2]], [each.tokens_per_s for each in c[3]]),
        {"by plain": TIMES, "95% interval": AROUND},
    ),
)
FIGURES: tuple[Figure[Compared], ...] = (
    Figure("load", lambda c: c[0], {"load": "{}"}),
    _SETTING,
    Figure("requests", lambda c: sum(each.requests for each in c[2]), {"responses": "{}"}),
    Figure("failed", lambda c: max(each.failed for each in c[2]), {"failed": "{:g}%"}),
    _spread("latency_s", 1, "response p50, s", ".2f"),
    Figure(
        "by_plain",
        lambda c: median_ratio([each.latency_s for each in c[3]], [each.latency_s for each in c[2]]),
        {"times as fast as plain": TIMES, "95% interval": AROUND},
    ),
    _spread("latency_p95_s", 1, "response p95, s", ".2f"),
    _spread("first_s", 1e3, "first token p50, ms", ".0f"),
    _spread("first_p95_s", 1e3, "first token p95, ms", ".0f"),
    _spread("token_p99_s", 1e3, "per token p99, ms", ".1f"),
    _spread("good", 1, "good", ".0%"),
    _spread("tokens_per_s", 1, "tokens/s", ".0f"),
    Figure(
        "acceptance_length",
        lambda c: next((each.acceptance_length for each in c[2]), None),
        {"acceptance length": "{:.2f}"},
    ),
)


def make_report(plan: Plan, machine: Machine, capacity: Runs, found: Mapping[str, Runs]) -> Report:
    """Return the report of the capacity and of the loads that were measured."""
    rows = make_rows(FIGURES, _compared(found))
    figures = {"capacity": make_rows(CAPACITY, _compared({"": capacity})), "loads": rows}
    runs = {"capacity": capacity, **found}
    return Report("open_loop", machine, plan, figures=figures, runs=runs).fill(
        machine=machine,
        table_of_capacity=Table.of("requests that are always open", CAPACITY, figures["capacity"]),
        table_of_loads=Table.of("requests that arrive at a rate", FIGURES, rows),
        shown=_SHOWN,
        svg=_chart(plan, rows),
    )


def _compared(found: Mapping[str, Runs]) -> Iterator[Compared]:
    for load, runs in found.items():
        for setting, own in runs.items():
            yield load, setting, own, runs[BASELINE]


def _chart(plan: Plan, rows: Sequence[Row]) -> str:
    shares = {load.name: load.share for load in plan.loads if load.burst == 1}
    lines = {
        setting: [
            (shares[row.load], row.latency_s.value)
            for row in rows
            if row.setting == setting and row.load in shares
        ]
        for setting in SETTINGS
    }
    title = "Time of a whole response, median"
    return line_chart(title, "share of the capacity of plain decoding", "seconds", lines, True)
