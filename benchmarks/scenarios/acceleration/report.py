"""The figures of each part, the goals, and the report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import Columns, Report, Table, around, times
from benchmarks.harness.statistics import Goal, Spread, spread
from benchmarks.scenarios.acceleration.measure import FIRST, FIRST_ALONE, SECOND, SECOND_ALONE, Run
from benchmarks.scenarios.acceleration.workloads import (
    AGREEMENT,
    AHEAD,
    BASELINE,
    DEMO,
    DRAFT_LENGTH,
    DRAFTER_S,
    NON_REPEATING,
    PASSES,
    SUFFIX,
    TARGET_S,
    ahead_name,
)
from flyserve.bench.statistics import Interval, bootstrap, share, speed, tau, total

if TYPE_CHECKING:
    from benchmarks.scenarios.acceleration import Plan

Runs = Mapping[str, Sequence[Run]]
"""Runs by setting; all settings have the same prompts and repetitions, in one order."""
_FORWARDS_GOAL, _DEMO_GOAL, _NON_REPEATING_GOAL, _PASSES_GOAL, _AHEAD_GOAL = 0.5, 1.15, 0.97, 1.3, 1.15
_INTRODUCTION = f"""
Every prompt is sent under every setting in turn, in an order that rotates, after a warm-up. One request at a
time goes through router, target, drafter and sub-drafter, each a process of its own with one thread. Every
way of drafting has its own drafter and router; those that are not being measured are idle. Decoding is greedy
in mode `fly` with drafts of {DRAFT_LENGTH}; with *goodput* the router chooses their length up to that.

A setting is named after its sub-drafter; with *ahead* the drafter goes on drafting while the target verifies.
*by*: all tokens divided by all seconds, relative to the setting *{BASELINE.name}* (or a part's first one) on
the same prompts, with its 95% interval over resamples of the prompts. *median*: median of the prompts' own
ratios. *forwards*: drafter forwards per emitted token. *supplied*: draft tokens that the sub-drafter
supplied. *proposals*: proposals requested from the sub-drafter per response, with those that arrived late,
were invalid, or had too low a confidence. *ahead*: tokens drafted ahead that were used.
*draft* and *verify*: milliseconds per round.
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one setting.

    Attributes:
        tokens_per_s: All tokens divided by all seconds.
        each: Tokens per second over responses.
        ratio: `tokens_per_s` divided by that of the baseline on the same prompts.
        median_ratio: Median of the responses' own ratios.
        tau: Tokens per round with a draft.
        draft_length: Draft tokens per round.
        forwards_per_token: Drafter forwards divided by emitted tokens.
        supplied_share: Share of draft tokens that the sub-drafter supplied.
        proposals: Proposals requested from the sub-drafter per response, late, invalid and weak included.
        ahead_share: Share of tokens drafted ahead that were used; None if there were none.
        draft_ms: Drafting per round with a draft.
        verify_ms: Verifying per round.
    """

    name: str
    tokens_per_s: float
    each: Spread
    ratio: Interval
    median_ratio: float
    tau: float
    draft_length: float
    forwards_per_token: float
    supplied_share: float
    proposals: float
    late: float
    invalid: float
    weak: float
    ahead_share: float | None
    draft_ms: float
    verify_ms: float


def summarize(runs: Runs, baseline: str) -> list[Figures]:
    """Return the figures of every setting, in their order; the baseline is among them."""
    return [_figures(name, measured, runs[baseline]) for name, measured in runs.items()]


def _figures(name: str, runs: Sequence[Run], baseline: Sequence[Run]) -> Figures:
    ahead = total(runs, lambda s: s.drafted_ahead)
    ahead_in_total = ahead + total(runs, lambda s: s.dropped_ahead)
    drafted, rounds = total(runs, lambda s: s.drafted), total(runs, lambda s: s.rounds)
    return Figures(
        name=name,
        tokens_per_s=speed(runs),
        each=spread([run.tokens_per_s for run in runs]),
        ratio=compare(runs, baseline),
        median_ratio=median(
            share(run.tokens_per_s, other.tokens_per_s) for run, other in zip(runs, baseline, strict=True)
        ),
        tau=tau(runs),
        draft_length=share(drafted, rounds),
        forwards_per_token=forwards_per_token(runs),
        supplied_share=share(total(runs, lambda s: s.sub_drafter_tokens), drafted),
        proposals=total(runs, lambda s: s.proposals_requested) / len(runs),
        late=total(runs, lambda s: s.proposals_late) / len(runs),
        invalid=total(runs, lambda s: s.proposals_invalid) / len(runs),
        weak=total(runs, lambda s: s.proposals_low_confidence) / len(runs),
        ahead_share=ahead / ahead_in_total if ahead_in_total else None,
        draft_ms=1e3 * share(total(runs, lambda s: s.draft_s), total(runs, lambda s: s.draft_rounds)),
        verify_ms=1e3 * share(total(runs, lambda s: s.verify_s), rounds),
    )


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
    return share(total(runs, lambda s: s.drafter_forwards), total(runs, lambda s: s.emitted))


def part_figures(part: str, runs: Runs) -> list[Figures]:
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
    if AHEAD in runs:
        best, best_ahead = fastest(plan, runs[AHEAD])
        name = "drafting ahead by not, simulated, best lengths: tokens per second"
        yield Goal(name, _AHEAD_GOAL, compare(runs[AHEAD][best_ahead], runs[AHEAD][best]))


_COLUMNS: Columns[Figures] = {
    "": lambda f: f.name,
    "tokens/s": lambda f: f"{f.tokens_per_s:.0f}",
    "by": lambda f: times(f.ratio.value),
    "95% interval": lambda f: around(f.ratio),
    "median": lambda f: times(f.median_ratio),
    "tau": lambda f: f"{f.tau:.2f}",
    "drafts of": lambda f: f"{f.draft_length:.1f}",
    "forwards": lambda f: f"{f.forwards_per_token:.2f}",
    "supplied": lambda f: f"{f.supplied_share:.0%}",
    "proposals (late, invalid, weak)": lambda f: (
        f"{f.proposals:.1f} ({f.late:.1f}, {f.invalid:.1f}, {f.weak:.1f})"
    ),
    "ahead": lambda f: "-" if f.ahead_share is None else f"{f.ahead_share:.0%}",
    "draft, ms": lambda f: f"{f.draft_ms:.1f}",
    "verify, ms": lambda f: f"{f.verify_ms:.1f}",
}
_SHOWN = ("tokens/s", "by", "95% interval", "tau", "forwards", "ahead")


def make_report(machine: Machine, plan: Plan, runs: Mapping[str, Runs]) -> Report:
    """Return the report of the parts that were measured."""
    figures = {part: part_figures(part, measured) for part, measured in runs.items()}
    report = Report("acceleration", machine, plan, figures=figures, runs=runs)
    report.introduction("Acceleration of drafting", _INTRODUCTION)
    report.goals(list(make_goals(plan, runs)))
    for part, measured in runs.items():
        title, note = _section(part, plan, measured)
        report.heading(title)
        report.text(note)
        report.table(Table.of(title, _COLUMNS, figures[part]), _SHOWN)
        bars = {each.name: each.ratio for each in figures[part]}
        report.chart(part, bar_chart(title, f"tokens/s by {next(iter(bars))}", bars), title)
    return report


def _section(part: str, plan: Plan, runs: Runs) -> tuple[str, str]:
    """Return the title and the description of a part."""
    if part == PASSES:
        return "A second pass", _passes_note(plan, runs)
    if part == AHEAD:
        return "Drafting ahead, simulated", _ahead_note(plan, runs)
    workload = plan.workload(part)
    return workload.title, workload.note


def _passes_note(plan: Plan, runs: Runs) -> str:
    each, alone = (
        ratios_by_repetition(runs[SECOND], runs[FIRST]),
        compare(runs[SECOND_ALONE], runs[FIRST_ALONE]),
    )
    return f"""
{plan.pass_prompts} problems of the demo pair with the sub-drafter `suffix`. A first pass fills the cache of a
new cache salt; a second pass sends the same problems again, next to the first pass of the next salt.
{plan.passes} pairs of passes: {times(each.value)} ({each.least:.2f} to {each.most:.2f}). Without a
sub-drafter, on {plan.control_prompts} of the problems, the ratio is {times(alone.value)} ({around(alone)}):
this part comes from caches of the prompts. Rows without a sub-drafter are relative to the first pass without.
"""


def _ahead_note(plan: Plan, runs: Runs) -> str:
    best, best_ahead = fastest(plan, runs)
    return f"""
Simulated engines in mode `exact`: a forward takes {TARGET_S * 1e3:g} ms in the target and
{DRAFTER_S * 1e3:g} ms in the drafter, which proposes the target's choice with probability {AGREEMENT:g}.
{plan.ahead_pairs} responses of {plan.ahead_tokens} tokens each. Fastest without: {best}; with: {best_ahead}.
"""
