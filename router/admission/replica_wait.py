"""Requests that wait for a replica where there is none, such as in a deployment that was scaled to zero."""

from collections.abc import Callable

from flyserve.core.errors import Overloaded
from router.replicas.pools import Accepts, ReplicaPool, any_replica

_RETRY_AFTER_S = 1.0


class ReplicaWait:
    """The wait for a replica, bounded in time and in requests.

    Attributes:
        num_requests: Requests that wait.
    """

    def __init__(self, pool: ReplicaPool, tier: str, timeout_s: float, most: int) -> None:
        """Let at most `most` requests wait at once, for `timeout_s` each; `tier` is for messages."""
        self.num_requests = self._num_choices = 0
        self._pool, self._tier, self._timeout_s, self._most = pool, tier, timeout_s, most

    @property
    def num_choices(self) -> int:
        """Choices that wait: the places that are missing.

        0 while a replica is ready: those that wait ask for other weights, which one more would not have.
        """
        return 0 if self._pool.ready(any_replica) else self._num_choices

    async def until_ready(
        self, accepts: Accepts, num_choices: int = 0, check: Callable[[], None] = lambda: None
    ) -> None:
        """Return when a replica is accepted, or the time is over.

        A caller without choices waits as well, but asks for no place. `check` raises for a request that no
        replica could serve; it is called if the request has to wait. Raise Overloaded if too many wait.
        """
        if self._pool.ready(accepts):
            return
        check()
        if self.num_requests >= self._most:
            reason = f"no {self._tier} is ready, and {self.num_requests} requests wait for one already"
            raise Overloaded(reason, _RETRY_AFTER_S)
        self.num_requests += 1
        self._num_choices += num_choices
        try:
            await self._pool.wait(accepts, self._timeout_s)
        finally:
            self.num_requests -= 1
            self._num_choices -= num_choices
