"""Circuit breaker of one endpoint: decides from past results if the endpoint may be used."""

from flyserve.core.clock import Clock
from services.common.channel import Backoff


class Breaker:
    """Closed: everything passes. A failure opens it: nothing passes for a while.

    The first failure opens it for no time at all, because the connection may have been the cause. Every
    further failure before a success opens it for twice as long. After that time it is half open: one attempt
    may pass; its success closes the breaker, its failure opens it again.

    Attributes:
        has_failed: True if it is open or half open.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.has_failed = False
        self._backoff: Backoff | None = None
        self._retry_at = clock.now()

    @property
    def wait_s(self) -> float:
        """Seconds until an attempt may pass; 0 if one may pass now."""
        return max(0.0, self._retry_at - self._clock.now())

    def record_failure(self) -> None:
        """Record that an attempt failed."""
        if self._backoff is None:
            self._backoff = Backoff()
        else:
            self._retry_at = self._clock.now() + self._backoff.next_s()
        self.has_failed = True

    def record_success(self) -> None:
        """Record that an attempt succeeded."""
        if not self.has_failed:
            return
        self.has_failed = False
        self._backoff = None
        self._retry_at = self._clock.now()
