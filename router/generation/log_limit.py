"""Limit of the log lines about requests that are rejected: one of each tenant per second."""

from collections import Counter

from flyserve.core.clock import Clock
from router.security.peers import current_tenant

_SECOND_S = 1.0


class LogLimit:
    """Counts the lines of each tenant: a rejected request costs little, and a line stops the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s = 0.0
        self._unlogged: Counter[str] = Counter()
        self._unlogged_before: Counter[str] = Counter()

    def figures(self) -> dict[str, int] | None:
        """Return what the current tenant's line adds, the number of those left out in the second before.

        Return None if the tenant has a line in this second already, so that this one is left out.
        """
        if (now := self._clock.now()) >= self._until_s:
            self._until_s = now + _SECOND_S
            self._unlogged, self._unlogged_before = Counter(), self._unlogged
        tenant = current_tenant()
        if tenant in self._unlogged:
            self._unlogged[tenant] += 1
            return None
        self._unlogged[tenant] = 0
        return {"unlogged": number} if (number := self._unlogged_before[tenant]) else {}
