"""The figures of each kind of traffic and pair, the goals, and the report. Pure."""

from collections.abc import Iterator

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import Report, Row, Table, make_rows
from benchmarks.harness.runs import FIGURES, Parts, Runs, cached_share, compare
from benchmarks.harness.statistics import Goal
from benchmarks.harness.workloads import AGENTS
from benchmarks.scenarios.real.plan import DTYPE, Plan

NEUTRAL = 0.99
"""Least share of the reused prompt tokens of plain decoding that a way with drafts reuses."""
_BASELINE = "plain"
_SHOWN = ("tokens/s", "relative to the first", "95% interval", "tau", "accuracy", "cached")


def make_goals(parts: Parts) -> Iterator[Goal]:
    """Yield the goals of agents' traces: drafts change nothing of what the cache of prefixes saves."""
    for pair, runs in parts.get(AGENTS, {}).items():
        for name in [each for each in runs if each != _BASELINE]:
            ratio = compare(runs[name], runs[_BASELINE], cached_share)
            yield Goal(f"{pair}: prompt tokens from the cache, {name} relative to plain", NEUTRAL, ratio)


def make_report(machine: Machine, plan: Plan, parts: Parts) -> Report:
    """Return the report of the parts that were measured; its data have every run."""
    figures = {part: {pair: _rows(runs) for pair, runs in tables.items()} for part, tables in parts.items()}
    sections = [
        (part, [(pair, Table.of(f"{part}, {pair}", FIGURES, rows)) for pair, rows in tables.items()])
        for part, tables in figures.items()
    ]
    charts = {part: _chart(part, tables) for part, tables in figures.items()}
    return Report("real", machine, plan, figures=figures, runs=parts).fill(
        sections=sections, charts=charts, targets=make_goals(parts), shown=_SHOWN, dtype=DTYPE
    )


def _rows(runs: Runs) -> list[Row]:
    return make_rows(FIGURES, [(name, own, runs[_BASELINE]) for name, own in runs.items()])


def _chart(part: str, tables: dict[str, list[Row]]) -> str:
    bars = {f"{pair.split()[0]}, {row.name}": row.ratio for pair, rows in tables.items() for row in rows}
    return bar_chart(part, "tokens/s relative to plain decoding", bars)
