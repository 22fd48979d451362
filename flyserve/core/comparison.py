"""The comparison of two arms by measured time; its trials lose a bounded share of the time. Pure."""

import math
from collections import deque
from statistics import median

from flyserve.core.ewma import RecentMean

LOST_SHARE = 0.0075
"""Share of the time that trying may lose."""
_FIRST_TRIALS = 4.0
"""The first trial may lose as many times that share, the second half of it, and so on."""
_LEAST_LOSS = 0.1
"""Share of a trial that counts as lost in any case."""
_TRIAL_ROUNDS = 12
_MOST_ROUNDS = 4 * _TRIAL_ROUNDS
"""Rounds after which a trial without a result is ended."""
_MEMORY_TRIALS = 8.0
_CHANGED = 0.4
"""Logarithm of a factor beyond which a measurement differs from an earlier one by more than noise."""
_LONGEST = 3.0
"""Longest round that counts in full, by the median: a pause says nothing about an arm."""


class Allowance:
    """The time that trying may lose, earned by the time that passes otherwise.

    Attributes:
        seconds: Time that is left; negative while a loss is not earned yet.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def earn(self, seconds: float) -> None:
        """Earn the share of some seconds, up to none that is lost."""
        self.seconds = max(self.seconds, min(0.0, self.seconds + LOST_SHARE * seconds))

    def charge(self, seconds: float) -> None:
        """Charge time that was lost."""
        self.seconds -= seconds


class Turn:
    """One trial at a time among comparisons whose arms influence each other's rounds.

    Attributes:
        phase: Changes with every arm; only a round within one phase counts.
        trial: The comparison that has its trial, up to its result; None between trials.
    """

    def __init__(self) -> None:
        self.phase = 0
        self.trial: Comparison | None = None
        self._rounds = 0

    def change(self, trial: "Comparison | None") -> None:
        """Begin the next phase, with the trial of a comparison or without one."""
        self.phase += 1
        self.trial, self._rounds = trial, 0

    def is_overdue(self) -> bool:
        """Record a round of any comparison; return True if they are more than the most of a phase."""
        self._rounds += 1
        return self._rounds > _MOST_ROUNDS


class _Rounds:
    """Recent rounds, at most as many as a trial has."""

    def __init__(self) -> None:
        self._rounds = deque[tuple[float, float]](maxlen=_TRIAL_ROUNDS)

    def add(self, seconds: float, units: float) -> bool:
        """Add a round; return True if there are enough of them."""
        self._rounds.append((seconds, units))
        return len(self._rounds) == _TRIAL_ROUNDS

    def unit_s(self) -> float:
        """Return the seconds of a unit of work; rounds much longer than most do not count in full."""
        longest_s = _LONGEST * median(seconds / units for seconds, units in self._rounds)
        spent_s = sum(min(seconds, longest_s * units) for seconds, units in self._rounds)
        return spent_s / sum(units for _, units in self._rounds)

    def seconds(self) -> float:
        """Return the time that these rounds took."""
        return sum(seconds for seconds, _ in self._rounds)


class Comparison:
    """The choice between two arms, on and off, by seconds per unit of work.

    Now and then a trial uses the arm that is not preferred. It is compared with the rounds before and after
    it: if these differ, something else has changed, and the trial says nothing. Trials begin at once, since
    nothing is known yet. Later ones wait until the loss of the last one is a small share of the time.

    Attributes:
        log_gain: Logarithm of the factor by which a unit takes less time with the arm on, the mean of recent
            trials; its weight is their number, 0 without a result.
    """

    def __init__(self, turn: Turn | None = None, least_gain: float = 0.0) -> None:
        """Prefer the arm `on` until its gain is measured, then from the logarithm `least_gain` on.

        `turn` is shared with comparisons that must not change their arms at the same time.
        """
        self.log_gain = RecentMean(0.0, _MEMORY_TRIALS)
        self._turn = turn or Turn()
        self._least_gain = least_gain
        self._prefers_on = True
        self._allowance = Allowance()
        self._phase = self._turn.phase
        self._stages = [_Rounds()]
        self._spent_s = 0.0

    @property
    def is_on(self) -> bool:
        """The arm that the next round uses."""
        return self._prefers_on is not self.is_trying

    @property
    def is_trying(self) -> bool:
        """True while a trial uses the other arm than the preferred one."""
        return self._turn.trial is self and len(self._stages) == 2

    @property
    def phase(self) -> int:
        """Number of the present phase."""
        return self._turn.phase

    def gain(self) -> float:
        """Return the factor by which rounds with the arm `on` are faster; 1 without a result."""
        return math.exp(self.log_gain.value)

    def prefer(self, is_on: bool) -> None:
        """Prefer an arm; not before the result of a trial that has begun."""
        if is_on is not self._prefers_on and self._turn.trial is not self:
            self._prefers_on = is_on
            self._turn.change(self._turn.trial)

    def record(self, phase: int, seconds: float, units: float) -> None:
        """Record a round that began in `phase`, in the arm that was to be used.

        Args:
            phase: The phase in which it began.
            seconds: Its duration.
            units: Units of work that it did.
        """
        if phase != self._turn.phase or not units > 0 or not 0 < seconds < math.inf:
            return
        trial = self._turn.trial
        if trial is not None and self._turn.is_overdue():
            trial._abandon()
        elif trial is self:
            self._record_trial(seconds, units)
        elif trial is None:
            self._record_usual(seconds, units)

    def _record_usual(self, seconds: float, units: float) -> None:
        if self._phase != self._turn.phase:
            self._phase, self._stages = self._turn.phase, [_Rounds()]
        doubt = max(1.0, _FIRST_TRIALS / max(1.0, self.log_gain.weight))
        self._allowance.earn(doubt * seconds)
        if self._stages[-1].add(seconds, units) and self._allowance.seconds >= 0:
            self._spent_s = 0.0
            self._next_stage()

    def _record_trial(self, seconds: float, units: float) -> None:
        if self.is_trying:
            self._spent_s += seconds
        if not self._stages[-1].add(seconds, units):
            return
        if self.is_trying:
            self._next_stage()
        else:
            self._judge(*(stage.unit_s() for stage in self._stages))

    def _next_stage(self) -> None:
        self._turn.change(self)
        self._stages.append(_Rounds())

    def _judge(self, before_s: float, trial_s: float, after_s: float) -> None:
        """End a trial in which a unit of work took `trial_s`, and otherwise `before_s` and `after_s`."""
        gain = (math.log(before_s) + math.log(after_s)) / 2 - math.log(trial_s)
        gain = -gain if self._prefers_on else gain
        lost = gain if self._prefers_on else -gain
        self._allowance.charge(max(_LEAST_LOSS, 1 - math.exp(-lost)) * self._spent_s)
        self._turn.change(None)
        if abs(math.log(after_s / before_s)) > _CHANGED:
            return
        if abs(gain - self.log_gain.value) > _CHANGED:
            self.log_gain = RecentMean(0.0, _MEMORY_TRIALS)
        self.log_gain.add(gain)
        self.prefer(self.log_gain.value >= self._least_gain)

    def _abandon(self) -> None:
        """End a trial whose rounds are too rare for a result; all of it counts as lost."""
        self._allowance.charge(_MOST_ROUNDS / _TRIAL_ROUNDS * self._stages[0].seconds())
        self._turn.change(None)


class RoundTimer:
    """The rounds of one sequence for a comparison: each lasts from the end of one to the end of the next."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._last: tuple[int, float] | None = None

    def record(self, units: float, now_s: float) -> None:
        """Record that a round with some units of work has ended at `now_s`."""
        if self._last is not None:
            phase, last_s = self._last
            self._comparison.record(phase, now_s - last_s, units)
        self._last = self._comparison.phase, now_s
