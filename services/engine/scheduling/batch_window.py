"""Decide how long to delay a forward so that sequences about to return can join the batch; pure.

A sequence whose step was just answered returns with its next step after a round trip. If the engine began the
next forward at once, each half of its sequences would wait for the other half's forward: twice the forwards,
each with half of the rows. Where a forward is bound by reading all weights, that costs half of the speed.
"""

import math
from collections.abc import Sequence

from flyserve.core.clock import Clock
from flyserve.core.costs import CostCurve
from flyserve.core.ewma import Ewma
from services.engine.base import ForwardInput, KvSlot

_MEAN_SHARE, _DEVIATION_SHARE = 1 / 8, 1 / 4
"""Weights of the latest round trip, after RFC 6298, section 2."""
_DEVIATIONS = 2.0
"""A sequence is expected this many mean deviations after the mean."""


class _SequenceTiming:
    """Round-trip times of one sequence: from an answer to its next step.

    Attributes:
        rows: Token rows of its latest step.
        is_expected: Its step has been answered and the next one has not arrived.
    """

    __slots__ = ("_answered_s", "_deviation_s", "_mean_s", "is_expected", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.is_expected = False
        self._answered_s = 0.0
        self._mean_s = Ewma(_MEAN_SHARE)
        self._deviation_s = Ewma(_DEVIATION_SHARE)

    @property
    def round_trip_s(self) -> float:
        """Upper estimate of the round trip; infinite before the first measurement."""
        mean_s, deviation_s = self._mean_s.value, self._deviation_s.value
        return math.inf if mean_s is None or deviation_s is None else mean_s + _DEVIATIONS * deviation_s

    @property
    def expected_by_s(self) -> float:
        """Time by which the next step should arrive; infinite if none is expected."""
        return self._answered_s + self.round_trip_s if self.is_expected else math.inf

    def record_answer(self, rows: int, now_s: float) -> None:
        self.rows, self.is_expected, self._answered_s = rows, True, now_s

    def record_arrival(self, at_s: float) -> None:
        if not self.is_expected:
            return
        self.is_expected, trip_s = False, max(0.0, at_s - self._answered_s)
        mean_s = self._mean_s.value
        self._deviation_s.add(trip_s / 2 if mean_s is None else abs(trip_s - mean_s))
        self._mean_s.add(trip_s)


class BatchWindow:
    """Round-trip times of an engine's sequences, and the delay of the next forward that follows from them.

    A sequence that joins a forward saves a forward of its own: the cost of two forwards minus the cost of
    the common one. If only few join, the others would be delayed for little, so the saving counts in
    proportion to the number that joins. The delay must be shorter than that saving, and so must the whole
    round trip of each expected sequence: sequences with long round trips (for a draft, say) arrive all the
    time, and those that arrive during a forward fill the next one without any delay.
    """

    def __init__(self, clock: Clock, max_batch_tokens: int) -> None:
        self._clock = clock
        self._max_batch_tokens = max_batch_tokens
        self._costs = CostCurve(clock)
        self._timings: dict[KvSlot, _SequenceTiming] = {}
        self._ready_s: float | None = None

    def record_arrival(self, slot: KvSlot, at_s: float) -> None:
        """Record that a sequence's step arrived, at a time that may lie within the last forward."""
        if (timing := self._timings.get(slot)) is not None:
            timing.record_arrival(at_s)

    def record_answer(self, slot: KvSlot, num_rows: int) -> None:
        """Record that a sequence's step of `num_rows` token rows has been answered."""
        self._timings.setdefault(slot, _SequenceTiming()).record_answer(num_rows, self._clock.now())

    def forget(self, slot: KvSlot) -> None:
        """Drop a closed sequence."""
        self._timings.pop(slot, None)

    def record_forward(self, num_rows: int, seconds: float) -> None:
        """Record the duration of a forward of `num_rows` token rows."""
        self._costs.observe(num_rows, seconds)
        self._ready_s = None

    def wait_s(self, ready: Sequence[ForwardInput]) -> float:
        """Return the seconds for which a forward of `ready` should still wait; 0 if it should begin."""
        now_s = self._clock.now()
        # NOTE: runs before every forward, so costs are estimated only if some sequence is expected.
        if not ready or not any(now_s < timing.expected_by_s < math.inf for timing in self._timings.values()):
            return 0.0
        own_rows = sum(len(item.tokens) for item in ready)
        own_s = self._costs.estimate(own_rows)
        if self._ready_s is None:
            self._ready_s = now_s
        best_gain_s = best_s = 0.0
        number = rows = 0
        for timing in self._expected(now_s, self._ready_s + own_s):
            if own_rows + rows + timing.rows > self._max_batch_tokens:
                break
            number, rows = number + 1, rows + timing.rows
            saved_s = own_s + self._costs.estimate(rows) - self._costs.estimate(own_rows + rows)
            gain_s = saved_s * min(1.0, number / len(ready)) - (timing.expected_by_s - now_s)
            if gain_s > best_gain_s and timing.round_trip_s <= saved_s:
                best_gain_s, best_s = gain_s, timing.expected_by_s - now_s
        return best_s

    def _expected(self, after_s: float, until_s: float) -> list[_SequenceTiming]:
        """Return the sequences expected in this interval, the earliest first; late ones are not awaited."""
        expected = (timing for timing in self._timings.values() if after_s < timing.expected_by_s <= until_s)
        return sorted(expected, key=lambda timing: timing.expected_by_s)
