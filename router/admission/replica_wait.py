"""Requests that wait for a replica where there is none, such as in a deployment that was scaled to zero."""

import asyncio
from collections.abc import Callable

from flyserve.core.errors import Overloaded
from router.admission.fair_queue import FairQueue
from router.replicas.pools import Accepts, ReplicaPool, any_replica

_RETRY_AFTER_S = 1.0


class ReplicaWait:
    """The wait for a replica, bounded in time and in requests, whose places tenants share."""

    def __init__(self, pool: ReplicaPool, tier: str, timeout_s: float, most: int) -> None:
        """Let at most `most` requests wait at once, for `timeout_s` each; `tier` is for messages."""
        self._pool, self._tier, self._timeout_s, self._most = pool, tier, timeout_s, most
        self._waiting: FairQueue[asyncio.Timeout] = FairQueue()
        """Waiting requests, each with the timeout that ends its wait if it is displaced."""

    @property
    def num_requests(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def num_choices(self) -> int:
        """Choices that wait: the places that are missing.

        0 while a replica is ready: those that wait ask for other weights, which one more would not have.
        """
        return 0 if self._pool.ready(any_replica) else self._waiting.slots_waiting

    async def until_ready(
        self, tenant: str, accepts: Accepts, num_choices: int = 0, check: Callable[[], None] = lambda: None
    ) -> None:
        """Return when a replica is accepted, or the time is over.

        A caller without choices waits as well, but asks for no place. `check` raises for a request that no
        replica could serve; it is called if the request has to wait.

        Raises:
            Overloaded: Too many wait; or the request was displaced by a tenant of which fewer wait.
        """
        if self._pool.ready(accepts):
            return
        check()
        if self.num_requests >= self._most:
            self._displace(tenant)
        displaced = asyncio.timeout(None)
        try:
            async with displaced:
                self._waiting.push(tenant, displaced, num_choices)
                await self._pool.wait(accepts, self._timeout_s)
        except TimeoutError:
            raise self._rejection("other tenants have fewer requests that wait for one") from None
        finally:
            self._waiting.remove(tenant, displaced)

    def _displace(self, tenant: str) -> None:
        """End the last wait of the tenant with the most; raise Overloaded if this one would have as many."""
        if not self._waiting.can_displace(tenant):
            raise self._rejection(f"{self.num_requests} requests wait for one already")
        self._waiting.displace().reschedule(0)

    def _rejection(self, reason: str) -> Overloaded:
        return Overloaded(f"no {self._tier} is ready, and {reason}", _RETRY_AFTER_S)
