"""When a call is tried again, and where: a pure policy, shared by both clients."""

import random
from collections.abc import Callable

from fly.errors import DeadlineExceeded, FlyServeError, NotReady, Overloaded

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_SHORTEST_SHARE = 0.5
"""A wait of the client's own choosing is drawn between this share of it and all of it."""
_LARGEST_EXCESS = 0.25
"""A wait that the server asks for is drawn between it and so much more: never less."""


class Tries:
    """The tries of one call, within one deadline.

    Only what is safe is tried again: a server that is not there or not ready, and one that is full and says
    when to come back. After a failure it is the turn of the next address, at once unless that one has asked
    for patience itself; waits at one address double from a tenth of a second to five.

    Attributes:
        place: Index of the address whose turn it is.
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
        """Begins a call.

        Args:
            retries: Further tries in a row; progress begins a new row.
            num_places: Addresses.
            place: The one to begin with.
            timeout_s: Of the whole call, waits included; None is for ever.
            now: Clock reading in seconds.
            draw: A number from 0 to 1, which spreads the waits of many clients.
        """
        self.place = place
        self._retries = retries
        self._num_places = num_places
        self._deadline = None if timeout_s is None else now + timeout_s
        self._draw = draw
        self._failures = 0
        self._not_before: dict[int, float] = {}

    def remaining_s(self, now: float) -> float | None:
        """Seconds that are left for the next try; None where there is no deadline.

        Raises:
            DeadlineExceeded: None are left.
        """
        if self._deadline is None:
            return None
        if now >= self._deadline:
            raise DeadlineExceeded("the deadline of the call has passed")
        return self._deadline - now

    def progressed(self) -> None:
        """The server answered: later failures are counted from here on."""
        self._failures = 0

    def again_after_s(self, error: FlyServeError, now: float) -> float:
        """Seconds to wait before the next try, at `place`.

        Raises:
            FlyServeError: The error itself, where another try is unsafe, one too many, or too late.
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
        """How long the failed address is left alone; None where no other try is safe."""
        if isinstance(error, Overloaded) and error.retry_after_s > 0:
            return error.retry_after_s * (1 + _LARGEST_EXCESS * self._draw())
        if isinstance(error, NotReady):
            doubled_s = min(_FIRST_WAIT_S * 2.0 ** (self._failures // self._num_places), _LONGEST_WAIT_S)
            return doubled_s * (_SHORTEST_SHARE + (1 - _SHORTEST_SHARE) * self._draw())
        return None
