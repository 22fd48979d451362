"""The figures of each part, the goals, and the report. Pure."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.runs import FIGURES, Run, Runs, compare, forwards_per_token
from benchmarks.harness.statistics import Goal, median_ratio
from benchmarks.scenarios.acceleration.masks import FORWARD_S, MASKED, UNMASKED, VOCABULARY, Seconds
from benchmarks.scenarios.acceleration.measure import ASKED, EACH, FREE_DRAFTS, SCHEMA, TIER
from benchmarks.scenarios.acceleration.passes import FIRST, FIRST_ALONE, SECOND, SECOND_ALONE
from benchmarks.scenarios.acceleration.plan import (
    AGREEMENT,
    AHEAD,
    BASELINE,
    DEMO,
    DRAFT_LENGTH,
    DRAFTER_S,
    ENDLESS,
    ENDLESS_S,
    FREE,
    LOOKUP,
    MEMORY,
    NON_REPEATING,
    PASSES,
    PERIOD,
    PREDICTED,
    REAL_VOCABULARY,
    RECIPE,
    REPEATING,
    SUFFIX,
    TARGET_S,
    Plan,
    ahead_name,
)
from benchmarks.scenarios.acceleration.plan import VOCABULARY as OTHER
from benchmarks.scenarios.acceleration.predictions import CHANGED, UNRELATED, WITHOUT
from flyserve.bench.statistics import Interval, speed, tau

TITLES = {
    DEMO: "The demo pair",
    PASSES: "A second pass",
    PREDICTED: "A predicted response",
    REPEATING: "Text that repeats",
    NON_REPEATING: "Text that never repeats",
    AHEAD: "Drafting ahead, simulated",
    LOOKUP: "Without a draft model",
    ENDLESS: "Without a draft model, text that never repeats",
    MEMORY: "A memory for all drafters, or one for each",
    OTHER: "Drafters with another vocabulary",
    REAL_VOCABULARY: "A real pair of two vocabularies",
    FREE: "Free drafts of forced text",
}
_BY_REPETITION = {LOOKUP: (FIRST, SECOND), MEMORY: ("first of a loop", "later")}
"""Parts with a table for the first repetition of every prompt, and one for the later ones."""
Figured = Callable[[Sequence[Run]], float]
_GOALS: tuple[tuple[str, str, str, int | None, float, Figured], ...] = (
    (DEMO, SUFFIX, BASELINE, None, 0.5, forwards_per_token),
    (DEMO, SUFFIX, BASELINE, None, 1.15, speed),
    (NON_REPEATING, SUFFIX, BASELINE, None, 0.97, speed),
    (PASSES, SECOND, FIRST, None, 1.5, speed),
    (PREDICTED, CHANGED, WITHOUT, None, 1.4, speed),
    (PREDICTED, UNRELATED, WITHOUT, None, 0.97, speed),
    (LOOKUP, "suffix, fly", "plain", 0, 1.3, speed),
    (LOOKUP, "suffix, fly", "plain", 1, 2.0, speed),
    (ENDLESS, "suffix, fly", "plain", None, 0.97, speed),
    (MEMORY, TIER, EACH, 1, 1.0, speed),
    (OTHER, "another, text", "own vocabulary", None, 0.8, tau),
    (OTHER, "another, text", "plain", None, 1.5, speed),
    (FREE, FREE_DRAFTS, ASKED, None, 1.3, speed),
)
"""Part, setting, the setting that it is compared with, repetition, limit and figure of every goal."""
_MASK_GOAL, _AHEAD_GOAL = 1.05, 1.15
_UNITS: Mapping[Figured, str] = {
    speed: "tokens per second",
    tau: "tau",
    forwards_per_token: "drafter forwards per token",
}
_SHOWN = ("tokens/s", "by", "95% interval", "tau", "forwards", "ahead")
_COST: tuple[Figure[tuple[int, Mapping[str, Sequence[float]]]], ...] = (
    Figure("sequences", lambda c: c[0], {"sequences": "{}"}),
    Figure("with_ms", lambda c: 1e3 * median(c[1][MASKED]), {"with masks, ms": "{:.1f}"}),
    Figure("without_ms", lambda c: 1e3 * median(c[1][UNMASKED]), {"without, ms": "{:.1f}"}),
    Figure(
        "cost",
        lambda c: median_ratio(c[1][MASKED], c[1][UNMASKED]),
        {"with by without": TIMES, "95% interval": AROUND},
    ),
)


def _at(runs: Sequence[Run], repetition: int | None) -> list[Run]:
    """Return the runs of the first repetition (0), of all later ones (1), or all (None)."""
    return [run for run in runs if repetition is None or bool(run.repetition) == bool(repetition)]


def part_rows(part: str, runs: Runs) -> dict[str, list[Row]]:
    """Return the figures of every setting of a part, by the title of their table.

    Each setting is compared with the part's first one; a second pass without a sub-drafter with the first one
    without.
    """
    first = next(iter(runs))
    bases = {SECOND_ALONE: FIRST_ALONE, FIRST_ALONE: FIRST_ALONE}
    found = dict[str, list[Row]]()
    for at in (0, 1) if part in _BY_REPETITION else (None,):
        own = [(name, _at(each, at), _at(runs[bases.get(name, first)], at)) for name, each in runs.items()]
        found[_title(part, at)] = make_rows(FIGURES, own)
    return found


def _title(part: str, repetition: int | None) -> str:
    return TITLES[part] if repetition is None else f"{TITLES[part]}: {_BY_REPETITION[part][repetition]}"


def fastest(plan: Plan, runs: Runs) -> tuple[str, str]:
    """Return the fastest setting without drafting ahead and with it."""
    lengths = plan.ahead_lengths
    found = [
        max((ahead_name(length, ahead) for length in lengths), key=lambda name: speed(runs[name]))
        for ahead in (False, True)
    ]
    return found[0], found[1]


def make_goals(plan: Plan, found: Mapping[str, Runs], masks: Sequence[Row] = ()) -> Iterator[Goal]:
    """Yield the goals of the parts that were measured."""
    for part, name, base, repetition, limit, figure in _GOALS:
        if part in found:
            runs = found[part]
            ratio = compare(_at(runs[name], repetition), _at(runs[base], repetition), figure)
            yield Goal(
                f"{_title(part, repetition)}: {name} by {base}, {_UNITS[figure]}", limit, ratio, limit != 0.5
            )
    if AHEAD in found:
        best, best_ahead = fastest(plan, found[AHEAD])
        ratio = compare(found[AHEAD][best_ahead], found[AHEAD][best])
        yield Goal("drafting ahead by not, simulated, best lengths: tokens per second", _AHEAD_GOAL, ratio)
    for row in masks:
        name = f"a verification of {row.sequences} sequences, with masks by without"
        yield Goal(name, _MASK_GOAL, row.cost, is_least=False)


def make_report(machine: Machine, plan: Plan, found: Mapping[str, Runs], masks: Seconds) -> Report:
    """Return the report of the parts that were measured."""
    figures = {part: part_rows(part, runs) for part, runs in found.items()}
    costs = make_rows(_COST, sorted(masks.items()))
    parts = [
        (
            part,
            [(title, Table.of(title, FIGURES, rows)) for title, rows in tables.items()],
            _chart(part, next(reversed(tables.values()))),
        )
        for part, tables in figures.items()
    ]
    report = Report("acceleration", machine, plan, figures=figures, masks=costs, runs=found)
    return report.fill(
        draft_length=DRAFT_LENGTH,
        targets=make_goals(plan, found, costs),
        parts=parts,
        titles=TITLES,
        shown=_SHOWN,
        alone=_alone(found),
        fastest=fastest(plan, found[AHEAD]) if AHEAD in found else None,
        recipe=RECIPE,
        period=PERIOD,
        agreement=AGREEMENT,
        seconds=(TARGET_S, DRAFTER_S, ENDLESS_S, FORWARD_S),
        schema=json.dumps(SCHEMA, indent=2),
        vocabulary=VOCABULARY,
        costs=Table.of("The cost of masks", _COST, costs),
    )


def _alone(found: Mapping[str, Runs]) -> Interval | None:
    passes = found.get(PASSES)
    return None if passes is None else compare(passes[SECOND_ALONE], passes[FIRST_ALONE])


def _chart(part: str, rows: Sequence[Row]) -> str:
    return bar_chart(TITLES[part], f"tokens/s by {rows[0].name}", {each.name: each.ratio for each in rows})
