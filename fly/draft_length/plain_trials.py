"""Trials under load: moments in which all sequences of a router draft, or none does."""

import math
from collections.abc import Sequence

from fly.clock import Clock

_LIMIT_S = 4.0
_REST = 4.0
"""Rest of a router after a trial, by the duration of that trial."""
_MEMORY_ROUNDS = 12.0
"""Rounds of every sequence that count in a mean."""
_SMALLEST_S = 1e-9


class Trials:
    """The trials of a router, one at a time.

    What drafts gain at one target shows only if the sequences of all others do the same: they share the
    drafters, and perhaps the machine.

    Attributes:
        changed_at_s: Time at which the present trial began, or the last one ended.
    """

    def __init__(self, clock: Clock) -> None:
        self.changed_at_s = -math.inf
        self._clock = clock
        self._is_plain: bool | None = None
        self._rests_until_s = -math.inf

    @property
    def is_plain(self) -> bool | None:
        """True in a trial without drafts, False in one in which all draft, None between trials."""
        if self._is_plain is not None and self._clock.now() > self.changed_at_s + _LIMIT_S:
            self.end()
        return self._is_plain

    def try_begin(self, is_plain: bool) -> bool:
        """Begin a trial, of at most four seconds; return False if it is too early for one."""
        now_s = self._clock.now()
        if self.is_plain is not None or now_s < self._rests_until_s:
            return False
        self.changed_at_s, self._is_plain = now_s, is_plain
        return True

    def end(self) -> None:
        """End the present trial."""
        now_s = self._clock.now()
        self._rests_until_s = now_s + _REST * (now_s - self.changed_at_s)
        self.changed_at_s, self._is_plain = now_s, None


class RecentRounds:
    """Recent rounds with drafts, or without.

    Attributes:
        count: Number of rounds that every sequence of a target has had.
    """

    def __init__(self) -> None:
        self.count = 0.0
        self._seconds = 0.0
        self._by_length: dict[int, float] = {}

    def add(self, num_drafts: int, num_steps: int, seconds: float, share: float) -> None:
        """Add rounds of one of `1 / share` sequences."""
        keep = 1 - share / _MEMORY_ROUNDS
        self.count += share
        self._seconds = self._seconds * keep + max(_SMALLEST_S, seconds)
        self._by_length = {length: number * keep for length, number in self._by_length.items()}
        self._by_length[num_drafts] = self._by_length.get(num_drafts, 0.0) + num_steps

    @property
    def round_s(self) -> float:
        """Seconds of a round; 0 before the first one."""
        return self._seconds / max(1, sum(self._by_length.values()))

    def token_s(self, tokens: Sequence[float]) -> float:
        """Return the seconds of a token, if a round has as many `tokens` as is expected by its draft.

        NOTE: not by those that were expected then, since a trial may be the first to show what drafts bring.
        """
        return self._seconds / sum(number * tokens[length] for length, number in self._by_length.items())
