"""Whether a forward waits for sequences that are about to come back, to need none of their own; pure.

A sequence that was just answered returns with its next step after a round trip. An engine that began its next
forward at once would have each half of its sequences wait for the other half's forward: twice the forwards,
each with half of the rows, and where a forward costs the reading of all weights that is half of the speed.
"""

import math
from collections.abc import Sequence

from fly.clock import Clock
from fly.costs import CostCurve
from services.engine.base import Slot, Work

_MEAN_SHARE, _DEVIATION_SHARE = 1 / 8, 1 / 4
"""Weights of the latest round trip, after RFC 6298, section 2."""
_DEVIATIONS = 2.0
"""A sequence is expected so many mean deviations after the mean."""


class _Visitor:
    """One sequence's comings and goings.

    Attributes:
        rows: Token rows of its latest step.
        is_away: It has been answered and has not come back.
    """

    __slots__ = ("_answered_s", "_deviation_s", "_mean_s", "is_away", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.is_away = False
        self._answered_s = 0.0
        self._mean_s: float | None = None
        self._deviation_s = 0.0

    @property
    def trip_s(self) -> float:
        """How long it should stay away at most; for ever where nothing is known of it."""
        return math.inf if self._mean_s is None else self._mean_s + _DEVIATIONS * self._deviation_s

    @property
    def due_s(self) -> float:
        """When it should be back at the latest."""
        return self._answered_s + self.trip_s if self.is_away else math.inf

    def goes(self, rows: int, now_s: float) -> None:
        self.rows, self.is_away, self._answered_s = rows, True, now_s

    def comes(self, at_s: float) -> None:
        if not self.is_away:
            return
        self.is_away, away_s = False, max(0.0, at_s - self._answered_s)
        if self._mean_s is None:
            self._mean_s, self._deviation_s = away_s, away_s / 2
            return
        self._deviation_s += _DEVIATION_SHARE * (abs(away_s - self._mean_s) - self._deviation_s)
        self._mean_s += _MEAN_SHARE * (away_s - self._mean_s)


class Gathering:
    """What the sequences of an engine have done so far, and what to wait for because of it.

    Whoever joins a forward saves one of its own: what the two would cost beyond the forward of both. Where
    only few of many join, the rest would not wait for these, so that it counts by their share. A wait must be
    worth that, and so must the whole trip of whoever is waited for: sequences that are long away, for a draft
    say, come all the time, and those who come during a forward fill the next one without anybody waiting.
    """

    def __init__(self, clock: Clock, max_batch_tokens: int) -> None:
        self._clock = clock
        self._max_batch_tokens = max_batch_tokens
        self._costs = CostCurve(clock)
        self._visitors: dict[Slot, _Visitor] = {}
        self._ready_s: float | None = None

    def came(self, slot: Slot, at_s: float) -> None:
        """The sequence wants something of the next forward, since a time that may lie within the last one."""
        if (visitor := self._visitors.get(slot)) is not None:
            visitor.comes(at_s)

    def answered(self, slot: Slot, num_rows: int) -> None:
        """A step of so many token rows is over, and its sequence away."""
        self._visitors.setdefault(slot, _Visitor()).goes(num_rows, self._clock.now())

    def left(self, slot: Slot) -> None:
        """The sequence is closed, and comes no more."""
        self._visitors.pop(slot, None)

    def saw_forward(self, num_rows: int, seconds: float) -> None:
        """A forward of so many token rows took so long."""
        self._costs.observe(num_rows, seconds)
        self._ready_s = None

    def wait_s(self, ready: Sequence[Work]) -> float:
        """Seconds that a forward of what is ready should still wait; 0 where it should begin."""
        now_s = self._clock.now()
        # NOTE: before every forward; what costs are by now is worked out only where somebody may come.
        if not ready or not any(now_s < visitor.due_s < math.inf for visitor in self._visitors.values()):
            return 0.0
        own_rows = sum(len(work.tokens) for work in ready)
        own_s = self._costs.estimate(own_rows)
        if self._ready_s is None:
            self._ready_s = now_s
        best_gain_s = best_s = 0.0
        number = rows = 0
        for visitor in self._coming(now_s, self._ready_s + own_s):
            if own_rows + rows + visitor.rows > self._max_batch_tokens:
                break
            number, rows = number + 1, rows + visitor.rows
            saved_s = own_s + self._costs.estimate(rows) - self._costs.estimate(own_rows + rows)
            gain_s = saved_s * min(1.0, number / len(ready)) - (visitor.due_s - now_s)
            if gain_s > best_gain_s and visitor.trip_s <= saved_s:
                best_gain_s, best_s = gain_s, visitor.due_s - now_s
        return best_s

    def _coming(self, after_s: float, until_s: float) -> list[_Visitor]:
        """Who should be back by then, the first first; who is late is not waited for."""
        coming = (visitor for visitor in self._visitors.values() if after_s < visitor.due_s <= until_s)
        return sorted(coming, key=lambda visitor: visitor.due_s)
