"""Requests that wait for a target where there is none, such as in a deployment that was scaled to zero."""

from collections.abc import Callable

from flyserve.core.errors import Overloaded
from router.replicas.directory import ReplicaDirectory
from router.replicas.pools import Accepts
from router.replicas.replica import Replica

_RETRY_AFTER_S = 1.0


class TargetWait:
    """The wait for a target, bounded in time and in requests.

    Attributes:
        num_requests: Requests that wait.
        num_choices: Choices of these requests: the places that are missing.
    """

    def __init__(self, replicas: ReplicaDirectory, timeout_s: float, most: int) -> None:
        """Let at most `most` requests wait at once, for `timeout_s` each."""
        self.num_requests = self.num_choices = 0
        self._replicas, self._timeout_s, self._most = replicas, timeout_s, most

    async def paired(
        self, accepts: Accepts, num_choices: int = 0, check: Callable[[], None] = lambda: None
    ) -> tuple[Replica, Replica | None]:
        """Return an accepted target and a drafter, to check a request of `num_choices` against.

        A caller without choices waits as well, but asks for no place. `check` raises for a request that no
        target could serve; it is called if the request has to wait.

        Raises:
            NotReady: There was no target in time.
            Overloaded: Too many requests wait already.
        """
        if not self._replicas.targets.ready(accepts):
            check()
            if self.num_requests >= self._most:
                reason = f"no target is ready, and {self.num_requests} requests wait for one already"
                raise Overloaded(reason, _RETRY_AFTER_S)
            self.num_requests += 1
            self.num_choices += num_choices
            try:
                await self._replicas.targets.wait(accepts, self._timeout_s)
            finally:
                self.num_requests -= 1
                self.num_choices -= num_choices
        return self._replicas.paired(accepts)
