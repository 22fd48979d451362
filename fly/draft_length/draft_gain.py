"""The gain of drafts under load, where sequences share forwards and perhaps a machine: measured by trials."""

import math
from collections.abc import Sequence

from fly.comparison import Comparison, Turn
from fly.ewma import RecentMean

_TRIAL_ROUNDS = 4.0
"""Rounds of every sequence."""
_MEMORY_LOAD, _MEMORY_CHOICES = 4.0, 2.0
_ALIKE = 0.1
"""Share of sequences that may do otherwise in rounds that count as those of all."""


class DraftGain:
    """Comparisons of drafting and plain decoding, by load, for sequences of one kind.

    The load is the number of sequences per target, to the nearest power of 2. In a trial all sequences of the
    router draft, or none does: the drafts of some slow down the others. A unit of work is a round without
    a draft, or one with the longest; shorter ones count by their estimated time. A lone sequence needs none.
    """

    def __init__(self, turn: Turn) -> None:
        """Take turns with all comparisons of the router."""
        self._turn = turn
        self._comparisons: dict[int, Comparison] = {}
        self._sequences = RecentMean(1.0, _MEMORY_LOAD)
        self._drafting = RecentMean(1.0, _MEMORY_CHOICES)

    @property
    def phase(self) -> int:
        """Number of the present phase of trials."""
        return self._turn.phase

    def plain_s(self, rounds_s: Sequence[float], best: float) -> float:
        """Return the seconds of a round without a draft; the `best` draft has so many tokens per second."""
        load = self._load()
        if load in self._comparisons:
            self._comparisons[load].log_worth = math.log(best * rounds_s[-1])
        measured = [each for each, comparison in self._comparisons.items() if comparison.log_gain.weight]
        if not measured:
            return rounds_s[0]
        nearest = min(measured, key=lambda each: abs(each - load))
        return self._comparisons[nearest].gain() * rounds_s[-1]

    def choose(self, wants_draft: bool) -> bool:
        """Return True if the next round is to have a draft: in a trial not what a sequence wants."""
        trial = self._turn.trial
        return wants_draft if trial is None else trial.is_on

    def record(
        self,
        phase: int,
        is_drafting: bool,
        num_sequences: int,
        seconds: float,
        units: float,
        is_settled: bool,
    ) -> None:
        """Record a round.

        Args:
            phase: The phase in which it began.
            is_drafting: It was to have a draft.
            num_sequences: Sequences at the target, more than one.
            seconds: Its duration.
            units: Units of work that it did.
            is_settled: No effect of the arm before is left in it.
        """
        weight = 1 / num_sequences
        self._sequences.add(float(num_sequences), weight)
        comparison = self._comparisons.setdefault(
            self._load(), Comparison(self._turn, trial_rounds=_TRIAL_ROUNDS)
        )
        if self._turn.trial is None:
            self._drafting.add(float(is_drafting), weight)
            comparison.prefer(self._drafting.value >= 0.5)
        is_alike = abs(self._drafting.value - is_drafting) <= _ALIKE or self._turn.trial is not None
        is_typical = is_settled and is_alike and is_drafting is comparison.is_on
        comparison.record(phase, seconds, units, weight, is_typical)

    def _load(self) -> int:
        return round(math.log2(self._sequences.value))
