"""Everything that one run found, and whether it is what was promised. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.acceleration.figures import (
    Figures,
    compare,
    fastest,
    forwards_per_token,
    ratios_by_repetition,
    summarize,
)
from benchmarks.acceleration.measure import FIRST, FIRST_ALONE, SECOND, SECOND_ALONE
from benchmarks.acceleration.plan import Plan
from benchmarks.acceleration.runs import Run, Runs
from benchmarks.acceleration.settings import AHEAD, BASELINE, DEMO, NON_REPEATING, PASSES, SUFFIX
from benchmarks.acceleration.simulation import ahead_name
from benchmarks.bars import Bar
from benchmarks.machine import Machine
from benchmarks.summary import Interval, Spread

_FORWARDS_BAR, _DEMO_BAR, _NON_REPEATING_BAR, _PASSES_BAR, _AHEAD_BAR = 0.5, 1.15, 0.97, 1.3, 1.15


@dataclass(frozen=True, slots=True)
class PassFigures:
    """Second passes by first ones.

    Attributes:
        ratio: Tokens per second of all second passes by all first ones.
        by_pair: The same for each pair of passes.
        alone: The same without a sub-drafter, on fewer prompts: what caches of the prompts gain.
    """

    ratio: Interval
    by_pair: Spread
    alone: Interval


@dataclass(frozen=True, slots=True)
class AheadFigures:
    """Drafting ahead by not: the best draft length of either."""

    best: str
    best_ahead: str
    ratio: Interval


@dataclass(frozen=True, slots=True)
class Results:
    """What the report is made of.

    Attributes:
        runs: By part, then by setting; the parts that were measured.
    """

    machine: Machine
    plan: Plan
    runs: Mapping[str, Runs]

    def figures(self, part: str) -> list[Figures]:
        """A line per setting of a part."""
        baselines = {PASSES: FIRST, AHEAD: ahead_name(self.plan.ahead_lengths[0], False)}
        measured = {name: runs for name, runs in self.runs[part].items() if runs}
        if part != PASSES:
            return summarize(measured, baselines.get(part, BASELINE.name))
        alone = {name: measured[name] for name in (FIRST_ALONE, SECOND_ALONE)}
        helped = {name: measured[name] for name in (FIRST, SECOND)}
        return [*summarize(helped, FIRST), *summarize(alone, FIRST_ALONE)]

    def passes(self) -> PassFigures:
        """Of the part of that name."""
        runs = self.runs[PASSES]
        return PassFigures(
            ratio=compare(runs[SECOND], runs[FIRST]),
            by_pair=ratios_by_repetition(runs[SECOND], runs[FIRST]),
            alone=compare(runs[SECOND_ALONE], runs[FIRST_ALONE]),
        )

    def ahead(self) -> AheadFigures:
        """Of the part of that name."""
        runs = self.runs[AHEAD]
        best, best_ahead = (
            fastest({name: runs[name] for name in self._ahead_names(is_ahead)}) for is_ahead in (False, True)
        )
        return AheadFigures(best, best_ahead, compare(runs[best_ahead], runs[best]))

    def bars(self) -> list[Bar]:
        """What was promised of the parts that were measured."""
        return list(self._bars())

    def _bars(self) -> Iterator[Bar]:
        if DEMO in self.runs:
            forwards = compare(*self._suffix_and_off(DEMO), figure=forwards_per_token)
            yield Bar("suffix by off, demo pair: drafter forwards per token", _FORWARDS_BAR, forwards, False)
            speeds = compare(*self._suffix_and_off(DEMO))
            yield Bar("suffix by off, demo pair: tokens per second", _DEMO_BAR, speeds)
        if NON_REPEATING in self.runs:
            speeds = compare(*self._suffix_and_off(NON_REPEATING))
            yield Bar("suffix by off, text that never repeats: tokens per second", _NON_REPEATING_BAR, speeds)
        if PASSES in self.runs:
            name = f"second pass by first, {self.plan.pass_prompts} problems: tokens per second"
            yield Bar(name, _PASSES_BAR, self.passes().ratio)
        if AHEAD in self.runs:
            name = "drafting ahead by not, simulated, best lengths: tokens per second"
            yield Bar(name, _AHEAD_BAR, self.ahead().ratio)

    def _suffix_and_off(self, part: str) -> tuple[Sequence[Run], Sequence[Run]]:
        return self.runs[part][SUFFIX.name], self.runs[part][BASELINE.name]

    def _ahead_names(self, is_ahead: bool) -> list[str]:
        return [ahead_name(length, is_ahead) for length in self.plan.ahead_lengths]
