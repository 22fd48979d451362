"""The choice of a level of drafting, by rounds with it and rounds without it. Pure.

A level is a sub-drafter, or drafting ahead. It makes a draft faster, but not another one. It can still cost
more than it gains: its messages, its waits, and the CPUs that it shares with everything else. So whole rounds
are compared, with the verification of the target in between.
"""

import math
from enum import Enum

from fly.ewma import RecentMean

_MOST_REFUSED = 48
"""Rounds of other levels in a row after which a level that has recorded none loses its turn."""
_TRIAL_ROUNDS = 12
"""Rounds of a trial, and rounds before it that it is compared with."""
_FEWEST_ROUNDS = 3 * _TRIAL_ROUNDS
"""Fewest rounds between two trials; with every trial that confirms the choice as many more."""
_MOST_CONFIRMED = 8
_MOST_ROUNDS = 1024
_LOST_SHARE = 0.005
"""Share of the time that trials may lose."""
_MEMORY_TRIALS = 16.0
_LARGEST_GAIN = 0.5
"""Gain of a trial above which it counts no more: a load that changes in it says nothing about the level."""
_NOISE = 0.15
"""Standard deviation of the gain that a trial shows, as measured with the demo pair."""
_LONGEST = 3.0
"""Longest round that counts in full, by the mean of the phase before: a pause says nothing about a level."""


class TrialTurn:
    """Lets the levels of a replica compare rounds one after the other.

    If two changed at once, each would be judged by what the other one gains.
    """

    def __init__(self) -> None:
        self._holder: object = None
        self._num_refused = 0

    def take(self, level: object) -> bool:
        """Return True if it is the turn of a level, which has recorded a round; it keeps it until `end`."""
        if self._holder is not level:
            self._num_refused += 1
            if self._holder is not None and self._num_refused <= _MOST_REFUSED:
                return False
            self._holder = level
        self._num_refused = 0
        return True

    def end(self) -> None:
        """End the turn of the level that has it."""
        self._holder = None


class _Phase(Enum):
    REST = "rest"
    BEFORE = "before"
    TRIAL = "trial"


class LevelChoice:
    """The choice of one replica for all its sequences.

    Trials begin at once, so a level that does not pay is left out after 12 rounds with it and 12 without. A
    trial that loses much is rarely repeated: trials lose a small share of the time.

    Attributes:
        is_used: The level is used in the present round.
        phase: Number of the present phase; only rounds within one phase count.
    """

    def __init__(self, least_gain: float = 0.0, turn: TrialTurn | None = None) -> None:
        """Start with the level in use; it is left out below the `least_gain`, the logarithm of a factor.

        Its trials wait for their `turn` among those of the replica's other levels.
        """
        self.is_used = True
        self.phase = 0
        self._is_usual = True
        self._kind = _Phase.BEFORE
        self._left = _TRIAL_ROUNDS
        self._spent_s = 0.0
        self._num_tokens = 0
        self._token_s = math.inf
        self._gain = RecentMean(0.0, _MEMORY_TRIALS)
        self._least_gain = least_gain
        self._turn = turn or TrialTurn()
        self._is_waiting = False
        self._num_confirmed = 0

    def gain(self) -> float:
        """Return the factor by which rounds with the level are faster; 1 without data."""
        return math.exp(self._gain.value)

    def record_round(self, phase: int, round_s: float, num_tokens: int) -> None:
        """Record a round that began in `phase`, with a draft of `num_tokens`."""
        if phase != self.phase or not num_tokens or not 0 < round_s < math.inf:
            return
        if not self._take_turn():
            return
        self._spent_s += min(round_s, _LONGEST * self._token_s * num_tokens)
        self._num_tokens += num_tokens
        self._left -= 1
        if not self._left:
            self._end_phase(self._spent_s / self._num_tokens)

    def _take_turn(self) -> bool:
        """Return True if a round counts now: those of a trial, and those before it, need the turn.

        A level that waits for its turn stays in its usual state, and starts the comparison when it gets it:
        rounds that began in another level's turn do not count.
        """
        if self._kind is _Phase.REST:
            return True
        was_waiting, self._is_waiting = self._is_waiting, not self._turn.take(self)
        if self._is_waiting:
            self.is_used = self._is_usual
        elif was_waiting:
            self._begin(_Phase.BEFORE, _TRIAL_ROUNDS)
        return not (self._is_waiting or was_waiting)

    def _end_phase(self, token_s: float) -> None:
        """End the phase, in which a drafted token took `token_s` seconds."""
        if self._kind is _Phase.REST:
            self._begin(_Phase.BEFORE, _TRIAL_ROUNDS)
        elif self._kind is _Phase.BEFORE:
            self.is_used = not self._is_usual
            self._begin(_Phase.TRIAL, _TRIAL_ROUNDS)
        else:
            log_ratio = math.log(token_s / self._token_s)
            self._decide(log_ratio if self._is_usual else -log_ratio)
        self._token_s = token_s

    def _decide(self, gain: float) -> None:
        """Choose by the trials so far; the last one showed `gain`, the logarithm of a factor."""
        self._turn.end()
        was_usual = self._is_usual
        self._gain.add(max(-_LARGEST_GAIN, min(_LARGEST_GAIN, gain)))
        self.is_used = self._is_usual = self._gain.value >= self._least_gain
        is_confirmed = self._is_usual is was_usual and (gain >= self._least_gain) is self._is_usual
        self._num_confirmed = min(_MOST_CONFIRMED, self._num_confirmed + 1) if is_confirmed else 1
        rest = max(_FEWEST_ROUNDS * self._num_confirmed, self._rest() if is_confirmed else 0)
        self._begin(_Phase.REST, min(_MOST_ROUNDS, rest))

    def _rest(self) -> int:
        """Return the rounds until the next trial that let trials lose a small share of the time.

        It is 0 while the sign of the gain is in doubt.
        """
        mean = abs(self._gain.value)
        is_clear = mean >= 2 * _NOISE / math.sqrt(self._gain.weight)
        return int(_TRIAL_ROUNDS * math.expm1(mean) / _LOST_SHARE) if is_clear else 0

    def _begin(self, kind: _Phase, num_rounds: int) -> None:
        self.phase += 1
        self._kind, self._left = kind, num_rounds
        self._spent_s, self._num_tokens = 0.0, 0


class SequenceRounds:
    """The rounds of one sequence: each lasts from the end of a draft to the end of the next one."""

    def __init__(self, choice: LevelChoice) -> None:
        self._choice = choice
        self._last: tuple[int, float] | None = None

    def record_draft(self, num_tokens: int, now: float) -> None:
        """Record that a draft has ended at `now`, in seconds."""
        if self._last is not None:
            phase, last = self._last
            self._choice.record_round(phase, now - last, num_tokens)
        self._last = self._choice.phase, now
