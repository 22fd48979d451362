"""The figures of each part, the goals, and the report. Pure."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import Report, Row, Table, make_rows
from benchmarks.harness.runs import FIGURES, Run, Runs, compare, forwards_per_token
from benchmarks.harness.statistics import Goal
from benchmarks.scenarios.acceleration.measure import AGREEMENT, DRAFTER_S, SCHEMA, TARGET_S
from benchmarks.scenarios.acceleration.plan import DRAFT_LENGTH, Plan
from benchmarks.scenarios.acceleration.predictions import CHANGED, UNRELATED, WITHOUT
from flyserve.bench.statistics import speed, tau

TITLES = {
    "demo": "The demo pair",
    "predicted": "A predicted response",
    "draft-ahead": "Drafting ahead, simulated",
    "memory": "A memory for all drafters, or one for each",
    "free-drafts": "Free drafts of forced text",
}
_REPETITIONS = {
    "demo": ("the first time", "again"),
    "memory": ("first of a loop", "later"),
}
"""Parts with a table for the first repetition of every prompt, and one for the later ones."""
Figured = Callable[[Sequence[Run]], float]
_UNITS: Mapping[Figured, str] = {
    speed: "tokens per second",
    tau: "tau",
    forwards_per_token: "drafter forwards per token",
}


@dataclass(frozen=True, slots=True)
class _Target:
    """A goal: a figure of a setting relative to that of another one, in one repetition or in all."""

    part: str
    setting: str
    base: str
    limit: float
    repetition: int | None = None
    figure: Figured = speed
    is_least: bool = True


_TARGETS = (
    _Target("demo", "suffix", "off", 0.5, 0, forwards_per_token, is_least=False),
    _Target("demo", "suffix", "off", 1.15, 0),
    _Target("demo", "suffix", "off", 1.5, 1),
    _Target("predicted", CHANGED, WITHOUT, 1.4),
    _Target("predicted", UNRELATED, WITHOUT, 0.97),
    _Target("draft-ahead", "drafts of 8, ahead", "drafts of 8", 1.15),
    _Target("memory", "one memory for all", "a memory for each drafter", 1.0, 1),
    _Target("free-drafts", "free drafts", "without free drafts", 1.3),
)
_SHOWN = ("tokens/s", "relative to the first", "95% interval", "tau", "forwards", "ahead")


def _at(runs: Sequence[Run], repetition: int | None) -> list[Run]:
    """Return the runs of the first repetition (0), of all later ones (1), or all (None)."""
    return [run for run in runs if repetition is None or bool(run.repetition) == bool(repetition)]


def part_rows(part: str, runs: Runs) -> dict[str, list[Row]]:
    """Return the figures of every setting of a part beside its first one, by the title of their table."""
    base, found = next(iter(runs.values())), dict[str, list[Row]]()
    for at in (0, 1) if part in _REPETITIONS else (None,):
        rows = [(name, _at(own, at), _at(base, at)) for name, own in runs.items()]
        found[_title(part, at)] = make_rows(FIGURES, rows)
    return found


def _title(part: str, repetition: int | None) -> str:
    return TITLES[part] if repetition is None else f"{TITLES[part]}, {_REPETITIONS[part][repetition]}"


def make_goals(found: Mapping[str, Runs]) -> Iterator[Goal]:
    """Yield the goals of the parts that were measured."""
    for each in (target for target in _TARGETS if target.setting in found.get(target.part, {})):
        runs = found[each.part]
        own, base = (_at(runs[name], each.repetition) for name in (each.setting, each.base))
        name = f"{_title(each.part, each.repetition)}: {each.setting} relative to {each.base}"
        ratio = compare(own, base, each.figure)
        yield Goal(f"{name}, {_UNITS[each.figure]}", each.limit, ratio, each.is_least)


def make_report(machine: Machine, plan: Plan, found: Mapping[str, Runs]) -> Report:
    """Return the report of the parts that were measured."""
    figures = {part: part_rows(part, runs) for part, runs in found.items()}
    parts = [
        (
            part,
            [(title, Table.of(title, FIGURES, rows)) for title, rows in tables.items()],
            _chart(part, next(reversed(tables.values()))),
        )
        for part, tables in figures.items()
    ]
    return Report("acceleration", machine, plan, figures=figures, runs=found).fill(
        draft_length=DRAFT_LENGTH,
        targets=make_goals(found),
        parts=parts,
        titles=TITLES,
        shown=_SHOWN,
        agreement=AGREEMENT,
        seconds=(TARGET_S, DRAFTER_S),
        schema=json.dumps(SCHEMA, indent=2),
    )


def _chart(part: str, rows: Sequence[Row]) -> str:
    unit = f"tokens/s relative to {rows[0].name}"
    return bar_chart(TITLES[part], unit, {each.name: each.ratio for each in rows})
