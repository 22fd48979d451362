"""What each API key may do at this router: so many requests at once, so many a minute."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fly.clock import Clock
from fly.errors import Overloaded
from router.security.keys import Caller

_RETRY_AFTER_S = 1.0
_MINUTE_S = 60.0


class Quotas:
    """Counts the requests of every caller that has a limit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at_once: Counter[str] = Counter()
        self._paid_until_s: dict[str, float] = {}

    @contextmanager
    def counted(self, caller: Caller) -> Iterator[None]:
        """Counts one request for as long as the block runs.

        Raises:
            Overloaded: The caller has as many at work as it may, or has asked too often of late.
        """
        self._check_number(caller)
        self._check_rate(caller)
        self._at_once[caller.name] += 1
        try:
            yield
        finally:
            self._at_once[caller.name] -= 1
            if not self._at_once[caller.name]:
                del self._at_once[caller.name]

    def _check_number(self, caller: Caller) -> None:
        most = caller.max_concurrent
        if most is not None and self._at_once[caller.name] >= most:
            raise Overloaded(f"this API key has {most} requests at work, as many as it may", _RETRY_AFTER_S)

    def _check_rate(self, caller: Caller) -> None:
        """A bucket of one minute's requests, which fills evenly: each request pays for a while of it."""
        rate = caller.requests_per_minute
        if rate is None:
            return
        now, cost_s = self._clock.now(), _MINUTE_S / rate
        paid_until_s = max(now, self._paid_until_s.get(caller.name, now)) + cost_s
        if (excess_s := paid_until_s - now - _MINUTE_S) > 1e-9:
            raise Overloaded(f"this API key may make {rate} requests a minute", excess_s)
        self._paid_until_s[caller.name] = paid_until_s
