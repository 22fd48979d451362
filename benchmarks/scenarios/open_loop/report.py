"""The report of the scenario `open_loop`."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import AMONG, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import Spread, ratio_spread, spread
from benchmarks.scenarios.open_loop.aiperf import Export
from benchmarks.scenarios.open_loop.plan import BASELINE, SETTINGS, Plan, Runs

_SHOWN = ("setting", "response p50, s", "times as fast as plain", "good")
Compared = tuple[str, str, Sequence[Export], Sequence[Export]]
"""A load, a setting, its runs, and those of plain decoding."""


def _values(runs: Sequence[Export], name: str, kind: str = "avg", scale: float = 1.0) -> list[float]:
    return [scale * each[name][kind] for each in runs]


def _of(name: str, kind: str, scale: float, head: str, form: str) -> Figure[Compared]:
    """Return the spread of one of AIPerf's statistics over the runs."""
    values = lambda c: spread(_values(c[2], name, kind, scale))  # noqa: E731
    return Figure(f"{name}_{kind}", values, {head: f"{{.value:{form}}}"})


def _good(compared: Compared) -> Spread:
    good, all_ = (_values(compared[2], name) for name in ("good_request_count", "request_count"))
    return spread([part / whole for part, whole in zip(good, all_, strict=True)])


def _failed(compared: Compared) -> float:
    return max(float(each.get("request_error_rate", {"avg": 0.0})["avg"]) for each in compared[2])


def _acceptance_length(compared: Compared) -> float | None:
    """Return the tokens per round with a draft, the median of the runs; None without drafts."""
    name = "spec_decode_token_weighted_acceptance_length"
    return median(_values(compared[2], name)) if name in compared[2][0] else None


_SETTING: Figure[Compared] = Figure("setting", lambda c: c[1], {"setting": "{}"})
_TOKENS = _of("output_token_throughput", "avg", 1, "tokens/s", ".0f")
CAPACITY: tuple[Figure[Compared], ...] = (
    _SETTING,
    _of("request_throughput", "avg", 1, "requests/s", ".2f"),
    _TOKENS,
    Figure(
        "ratio",
        lambda c: ratio_spread(*(_values(runs, "output_token_throughput") for runs in c[2:])),
        {"relative to plain": TIMES, "ratios": AMONG},
    ),
)
FIGURES: tuple[Figure[Compared], ...] = (
    Figure("load", lambda c: c[0], {"load": "{}"}),
    _SETTING,
    Figure("requests", lambda c: round(sum(_values(c[2], "request_count"))), {"responses": "{}"}),
    Figure("failed", _failed, {"failed": "{:g}%"}),
    _of("request_latency", "p50", 1e-3, "response p50, s", ".2f"),
    Figure(
        "ratio",
        lambda c: ratio_spread(*(_values(runs, "request_latency", "p50") for runs in (c[3], c[2]))),
        {"times as fast as plain": TIMES, "ratios": AMONG},
    ),
    _of("request_latency", "p95", 1e-3, "response p95, s", ".2f"),
    _of("time_to_first_token", "p50", 1, "first token p50, ms", ".0f"),
    _of("time_to_first_token", "p95", 1, "first token p95, ms", ".0f"),
    _of("inter_token_latency", "p99", 1, "per token p99, ms", ".1f"),
    Figure("good", _good, {"good": "{.value:.0%}"}),
    _TOKENS,
    Figure("acceptance_length", _acceptance_length, {"acceptance length": "{:.2f}"}),
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
    shares = {load.name: load.share for load in plan.loads if load.smoothness == 1}
    lines = {
        setting: [
            (shares[row.load], row.request_latency_p50.value)
            for row in rows
            if row.setting == setting and row.load in shares
        ]
        for setting in SETTINGS
    }
    title = "Time of a whole response, median"
    return line_chart(title, "share of the capacity of plain decoding", "seconds", lines, True)
