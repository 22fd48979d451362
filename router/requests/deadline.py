"""Deadline of a request."""

from fly.clock import Clock
from fly.errors import DeadlineExceeded


class Deadline:
    """A point on a clock, or never."""

    def __init__(self, clock: Clock, timeout_s: float | None) -> None:
        """Set the deadline `timeout_s` from now; None is never."""
        self._clock = clock
        self._at = None if timeout_s is None else clock.now() + timeout_s

    def remaining_s(self) -> float | None:
        """Return the seconds left, above 0; None if there is no deadline.

        Raises:
            DeadlineExceeded: It has passed.
        """
        if self._at is None:
            return None
        remaining_s = self._at - self._clock.now()
        if remaining_s <= 0:
            raise DeadlineExceeded("the request's deadline has passed")
        return remaining_s

    def remaining_ms(self) -> int:
        """Return the milliseconds left, at least 1; 0 if there is no deadline.

        Raises:
            DeadlineExceeded: It has passed.
        """
        remaining_s = self.remaining_s()
        return 0 if remaining_s is None else max(1, int(remaining_s * 1000))
