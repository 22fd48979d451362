"""The circuit breaker of one endpoint: whether it may be asked, by what became of what it was asked."""

from enum import Enum

from fly.clock import Clock
from services.common.backoff import Backoff


class BreakerState(Enum):
    """What an endpoint may be trusted with."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class Breaker:
    """Closed, it lets everything through. A failure opens it: nothing goes through for a while.

    The first failure opens it for no time at all: it may have been the connection's. Every further one before
    an answer opens it for twice as long. After that it is half open: one probe may go through; its answer
    closes it, its failure opens it again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._has_failed = False
        self._backoff: Backoff | None = None
        self._retry_at = clock.now()

    @property
    def state(self) -> BreakerState:
        if not self._has_failed:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self.wait_s > 0 else BreakerState.HALF_OPEN

    @property
    def wait_s(self) -> float:
        """Seconds until a probe may go through; 0 where something may now."""
        return max(0.0, self._retry_at - self._clock.now())

    def failed(self) -> None:
        """What went through failed."""
        if self._backoff is None:
            self._backoff = Backoff()
        else:
            self._retry_at = self._clock.now() + self._backoff.next_s()
        self._has_failed = True

    def answered(self) -> None:
        """What went through was answered."""
        if not self._has_failed:
            return
        self._has_failed = False
        self._backoff = None
        self._retry_at = self._clock.now()
