"""Retries of a call: when, and at which server. Pure, and shared by both clients."""

import random
from collections.abc import Callable

from flyserve.core.errors import DeadlineExceeded, FlyServeError, NotReady, Overloaded
from flyserve.core.limits import MOST_TIMEOUT_S

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_MOST_DOUBLINGS = 16
_SHORTEST_SHARE = 0.5
"""A delay that the client chooses is drawn between this share of it and all of it."""
_LARGEST_EXCESS = 0.25
"""A delay that the server requests is drawn between it and this share more, never less."""


class RetryPolicy:
    """Retries of one call, within one deadline.

    Only safe calls are retried: at a server that does not answer or is not ready, and at a full one that
    sends a retry delay. After a failure the next address is tried, immediately unless that one has
    requested a delay itself. Delays at one address double from 0.1 to 5 seconds.

    Attributes:
        place: Index of the address to try next.
    """

    def __init__(
        self,
        retries: int,
        num_places: int,
        place: int,
        timeout_s: float | None,
        now: float,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Begin a call, first at address `place`, with a timeout that includes delays; None is no timeout.

        A timeout of more than one day is one of one day: gRPC takes a very long one for none left.

        At most `retries` follow each other without progress. `draw` returns a number from 0 to 1, which
        spreads the delays of many clients.
        """
        self.place = place
        self._retries = retries
        self._num_places = num_places
        self._deadline = None if timeout_s is None else now + min(timeout_s, MOST_TIMEOUT_S)
        self._draw = draw
        self._failures = 0
        self._not_before: dict[int, float] = {}

    def remaining_s(self, now: float) -> float | None:
        """Return the seconds left, None without a deadline; raise DeadlineExceeded if none are left."""
        if self._deadline is None:
            return None
        if now >= self._deadline:
            raise DeadlineExceeded("the deadline of the call has passed")
        return self._deadline - now

    def progressed(self) -> None:
        """Reset the count of failures: the server answered."""
        self._failures = 0

    def next_delay_s(self, error: FlyServeError, now: float) -> float:
        """Return the seconds to wait before the next attempt, at `place`.

        Raise the error itself if a retry is unsafe, one too many, or too late.
        """
        delay_s = self._delay_s(error)
        self._failures += 1
        if delay_s is None or self._failures > self._retries:
            raise error
        self._not_before[self.place] = now + delay_s
        self.place = (self.place + 1) % self._num_places
        wait_s = max(0.0, self._not_before.get(self.place, now) - now)
        if self._deadline is not None and now + wait_s >= self._deadline:
            raise error
        return wait_s

    def _delay_s(self, error: FlyServeError) -> float | None:
        """Return the delay of the failed address; None if no retry is safe."""
        if isinstance(error, Overloaded) and error.retry_after_s > 0:
            return error.retry_after_s * (1 + _LARGEST_EXCESS * self._draw())
        if isinstance(error, NotReady):
            doublings = min(self._failures // self._num_places, _MOST_DOUBLINGS)
            doubled_s = min(_FIRST_WAIT_S * 2.0**doublings, _LONGEST_WAIT_S)
            return doubled_s * (_SHORTEST_SHARE + (1 - _SHORTEST_SHARE) * self._draw())
        return None
