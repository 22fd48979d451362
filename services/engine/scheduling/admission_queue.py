"""Sequences that wait for a place or for KV memory, and the length that each is expected to reach; pure."""

import bisect
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from flyserve.core.ewma import Ewma
from flyserve.core.messages import Open

MAX_PASSES = 8
"""Sequences that may be admitted before one that waited longer but does not fit."""
_LATEST_SHARE = 1 / 8
"""Weight of the latest finished sequence in the averages."""

T = TypeVar("T")


class GrowthEstimate:
    """The length that sequences are expected to reach, learned from those that have finished.

    A sequence is expected to use the same fraction of its `max_new_tokens` as the others did, all of it
    before any has finished. Once it is longer than that, its remaining tokens are estimated in the same way.
    """

    def __init__(self) -> None:
        self._fraction = Ewma(_LATEST_SHARE)
        self._fraction.add(1.0)
        self._growth = Ewma(_LATEST_SHARE)

    def record(self, opening: Open, length: int) -> None:
        """Record a sequence that was closed with `length` tokens; ignore one that was never computed."""
        growth = length - opening.prompt_length
        if growth < 0:
            return
        self._growth.add(growth)
        if opening.max_new_tokens:
            self._fraction.add(min(1.0, growth / opening.max_new_tokens))

    def expected_length(self, opening: Open, length: int) -> int:
        """Return the expected final length of a sequence that has `length` tokens now."""
        length, limit = max(length, opening.prompt_length), opening.max_new_tokens
        growth = length - opening.prompt_length
        expected = self._growth_within(limit)
        if growth < expected:
            return opening.prompt_length + expected
        return length if 0 < limit <= growth else length + self._growth_within(limit and limit - growth)

    def _growth_within(self, max_new_tokens: int) -> int:
        """Return the expected growth within a limit; 0 is no limit."""
        if max_new_tokens:
            return round((self._fraction.value or 0.0) * max_new_tokens)
        return round(self._growth.value or 0.0)


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T]):
    """An item of the queue; `num_passes` counts items that were admitted although they came later."""

    item: T
    rank: tuple[int, bool, int]
    num_passes: int = 0


class AdmissionQueue(Generic[T]):
    """Items in order of admission: by priority, then those that were preempted, then by arrival.

    An item that does not fit may be passed by later ones that do, at most `MAX_PASSES` times.
    """

    def __init__(self) -> None:
        self._waiting: list[_Waiting[T]] = []
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: T, priority: int, is_preempted: bool = False) -> None:
        rank = (-priority, not is_preempted, next(self._arrivals))
        bisect.insort(self._waiting, _Waiting(item, rank), key=lambda waiting: waiting.rank)

    def remove(self, item: T) -> bool:
        """Remove an item; return False if it does not wait."""
        before = self._waiting
        self._waiting = [waiting for waiting in before if waiting.item is not item]
        return len(self._waiting) < len(before)

    def items(self) -> list[T]:
        """Return the items in order."""
        return [waiting.item for waiting in self._waiting]

    def admit(self, try_admit: Callable[[T], bool]) -> None:
        """Offer the items in order to `try_admit`, and remove those that it admits."""
        passed: list[_Waiting[T]] = []
        most_passes = 0
        for waiting in list(self._waiting):
            if try_admit(waiting.item):
                self._waiting.remove(waiting)
                for each in passed:
                    each.num_passes += 1
                most_passes += bool(passed)
            else:
                passed.append(waiting)
                most_passes = max(most_passes, waiting.num_passes)
            if most_passes >= MAX_PASSES:
                return
