"""The figures of each part, the goals, and the report. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import Goal, Spread, ratios, spread
from benchmarks.scenarios.acceleration.measure import (
    FIRST,
    FIRST_ALONE,
    SECOND,
    SECOND_ALONE,
    Plan,
    Run,
    Runs,
)
from benchmarks.scenarios.acceleration.predictions import CHANGED, UNRELATED, WITHOUT
from benchmarks.scenarios.acceleration.workloads import (
    AGREEMENT,
    AHEAD,
    BASELINE,
    DEMO,
    DRAFT_LENGTH,
    DRAFTER_S,
    NON_REPEATING,
    PASSES,
    PERIOD,
    PREDICTED,
    RECIPE,
    SUFFIX,
    TARGET_S,
    TITLES,
    ahead_name,
)
from flyserve.bench.statistics import Interval, bootstrap, share, speed, tau, total

_FORWARDS_GOAL, _DEMO_GOAL, _NON_REPEATING_GOAL, _PASSES_GOAL, _AHEAD_GOAL = 0.5, 1.15, 0.97, 1.5, 1.15
_CHANGED_GOAL, _UNRELATED_GOAL = 1.4, 0.97


Pair = tuple[str, Sequence[Run], Sequence[Run]]
"""The name of a setting, its runs, and those of the baseline on the same prompts."""


def _per_response(runs: Sequence[Run], name: str) -> float:
    return _total(runs, name) / len(runs)


def _total(runs: Sequence[Run], name: str) -> float:
    return total(runs, lambda statistics: float(getattr(statistics, name)))


def _ahead_share(runs: Sequence[Run]) -> float | None:
    """Return the share of tokens drafted ahead that were used; None if there were none."""
    used = _total(runs, "drafted_ahead")
    drafted = used + _total(runs, "dropped_ahead")
    return used / drafted if drafted else None


def _median_ratio(runs: Sequence[Run], baseline: Sequence[Run]) -> float:
    return median(ratios([run.tokens_per_s for run in runs], [run.tokens_per_s for run in baseline]))


_PROPOSALS = "{0[requested]:.1f} ({0[late]:.1f}, {0[invalid]:.1f})"
FIGURES: tuple[Figure[Pair], ...] = (
    Figure("name", lambda p: p[0], {"": "{}"}),
    Figure("tokens_per_s", lambda p: speed(p[1]), {"tokens/s": "{:.0f}"}),
    Figure("each", lambda p: spread([run.tokens_per_s for run in p[1]])),
    Figure("ratio", lambda p: compare(p[1], p[2]), {"by": TIMES, "95% interval": AROUND}),
    Figure("median_ratio", lambda p: _median_ratio(p[1], p[2]), {"median": "{:.2f}x"}),
    Figure("tau", lambda p: tau(p[1]), {"tau": "{:.2f}"}),
    Figure(
        "draft_length",
        lambda p: share(_total(p[1], "drafted"), _total(p[1], "rounds")),
        {"drafts of": "{:.1f}"},
    ),
    Figure("forwards_per_token", lambda p: forwards_per_token(p[1]), {"forwards": "{:.2f}"}),
    Figure(
        "supplied_share",
        lambda p: share(_total(p[1], "sub_drafter_tokens"), _total(p[1], "drafted")),
        {"supplied": "{:.0%}"},
    ),
    Figure(
        "proposals",
        lambda p: {
            "requested": _per_response(p[1], "proposals_requested"),
            "late": _per_response(p[1], "proposals_late"),
            "invalid": _per_response(p[1], "proposals_invalid"),
        },
        {"proposals (late, invalid)": _PROPOSALS},
    ),
    Figure("ahead_share", lambda p: _ahead_share(p[1]), {"ahead": "{:.0%}"}),
    Figure(
        "predicted",
        lambda p: (_per_response(p[1], "predicted_accepted"), _per_response(p[1], "predicted")),
        {"predicted": lambda each: f"{each[0]:.0f} of {each[1]:.0f}" if each[1] else "-"},
    ),
    Figure(
        "draft_ms",
        lambda p: 1e3 * share(_total(p[1], "draft_s"), _total(p[1], "draft_rounds")),
        {"draft, ms": "{:.1f}"},
    ),
    Figure(
        "verify_ms",
        lambda p: 1e3 * share(_total(p[1], "verify_s"), _total(p[1], "rounds")),
        {"verify, ms": "{:.1f}"},
    ),
)
_SHOWN = ("tokens/s", "by", "95% interval", "tau", "forwards", "ahead")


def summarize(runs: Runs, baseline: str) -> list[Row]:
    """Return the figures of every setting, in their order; the baseline is among them."""
    return make_rows(FIGURES, [(name, measured, runs[baseline]) for name, measured in runs.items()])


def compare(
    runs: Sequence[Run], baseline: Sequence[Run], figure: Callable[[Sequence[Run]], float] = speed
) -> Interval:
    """Return a figure divided by the baseline's, and its interval over resamples of the prompts."""
    by_prompt: dict[int, list[tuple[Run, Run]]] = {}
    for pair in zip(runs, baseline, strict=True):
        by_prompt.setdefault(pair[0].prompt, []).append(pair)

    def ratio(prompts: Sequence[Sequence[tuple[Run, Run]]]) -> float:
        own = [run for pairs in prompts for run, _ in pairs]
        others = [run for pairs in prompts for _, run in pairs]
        return share(figure(own), figure(others))

    return bootstrap(list(by_prompt.values()), ratio)


def ratios_by_repetition(runs: Sequence[Run], baseline: Sequence[Run]) -> Spread:
    """Return the ratios of speed over all prompts, one per repetition."""

    def speed_of(repetition: int, measured: Sequence[Run]) -> float:
        return speed([run for run in measured if run.repetition == repetition])

    repetitions = sorted({run.repetition for run in runs})
    return spread([share(speed_of(number, runs), speed_of(number, baseline)) for number in repetitions])


def forwards_per_token(runs: Sequence[Run]) -> float:
    """Return drafter forwards divided by emitted tokens."""
    return share(_total(runs, "drafter_forwards"), _total(runs, "emitted"))


def part_figures(part: str, runs: Runs) -> list[Row]:
    """Return the figures of every setting of a part."""
    if part == PASSES:
        pairs = ((FIRST, SECOND), (FIRST_ALONE, SECOND_ALONE))
        return [
            figures
            for first, second in pairs
            for figures in summarize({first: runs[first], second: runs[second]}, first)
        ]
    return summarize(runs, next(iter(runs)))


def fastest(plan: Plan, runs: Runs) -> tuple[str, str]:
    """Return the fastest setting without drafting ahead and with it."""
    best, best_ahead = (
        max(
            (ahead_name(length, is_ahead) for length in plan.ahead_lengths),
            key=lambda name: speed(runs[name]),
        )
        for is_ahead in (False, True)
    )
    return best, best_ahead


def make_goals(plan: Plan, runs: Mapping[str, Runs]) -> Iterator[Goal]:
    """Yield the goals of the parts that were measured."""
    if DEMO in runs:
        pair = runs[DEMO][SUFFIX.name], runs[DEMO][BASELINE.name]
        forwards = compare(*pair, figure=forwards_per_token)
        yield Goal("suffix by off, demo pair: drafter forwards per token", _FORWARDS_GOAL, forwards, False)
        yield Goal("suffix by off, demo pair: tokens per second", _DEMO_GOAL, compare(*pair))
    if NON_REPEATING in runs:
        pair = runs[NON_REPEATING][SUFFIX.name], runs[NON_REPEATING][BASELINE.name]
        name = "suffix by off, text that never repeats: tokens per second"
        yield Goal(name, _NON_REPEATING_GOAL, compare(*pair))
    if PASSES in runs:
        name = f"second pass by first, {plan.pass_prompts} problems: tokens per second"
        yield Goal(name, _PASSES_GOAL, compare(runs[PASSES][SECOND], runs[PASSES][FIRST]))
    if PREDICTED in runs:
        predicted = runs[PREDICTED]
        for name, goal in ((CHANGED, _CHANGED_GOAL), (UNRELATED, _UNRELATED_GOAL)):
            ratio = compare(predicted[name], predicted[WITHOUT])
            yield Goal(f"prediction ({name}) by none, demo pair: tokens per second", goal, ratio)
    if AHEAD in runs:
        best, best_ahead = fastest(plan, runs[AHEAD])
        name = "drafting ahead by not, simulated, best lengths: tokens per second"
        yield Goal(name, _AHEAD_GOAL, compare(runs[AHEAD][best_ahead], runs[AHEAD][best]))


def make_report(machine: Machine, plan: Plan, runs: Mapping[str, Runs]) -> Report:
    """Return the report of the parts that were measured."""
    figures = {part: part_figures(part, measured) for part, measured in runs.items()}
    passes = runs.get(PASSES)
    parts = [
        (
            part,
            Table.of(TITLES[part], FIGURES, rows),
            bar_chart(TITLES[part], f"tokens/s by {rows[0].name}", {each.name: each.ratio for each in rows}),
        )
        for part, rows in figures.items()
    ]
    return Report("acceleration", machine, plan, figures=figures, runs=runs).fill(
        draft_length=DRAFT_LENGTH,
        baseline=BASELINE,
        targets=make_goals(plan, runs),
        parts=parts,
        shown=_SHOWN,
        passes=passes and ratios_by_repetition(passes[SECOND], passes[FIRST]),
        alone=passes and compare(passes[SECOND_ALONE], passes[FIRST_ALONE]),
        fastest=fastest(plan, runs[AHEAD]) if AHEAD in runs else None,
        recipe=RECIPE,
        period=PERIOD,
        agreement=AGREEMENT,
        target_s=TARGET_S,
        drafter_s=DRAFTER_S,
    )
