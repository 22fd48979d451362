"""Fair queue: free slots go to tenants in turn, however many requests each of them has queued."""

from collections import Counter, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Slots in use and queued requests, by tenant.

    A free slot goes to the tenant with the fewest slots, and there to the oldest request. Among tenants with
    equally many slots, the one whose last turn is the longest ago comes first.
    """

    def __init__(self) -> None:
        self._in_use: Counter[str] = Counter()
        self._waiting: dict[str, deque[T]] = {}
        self._last_turns: dict[str, int] = {}
        self._num_turns = 0
        self._num_waiting = 0
        self._num_in_use = 0

    def __len__(self) -> int:
        """Return the number of queued requests."""
        return self._num_waiting

    @property
    def in_use(self) -> int:
        """Slots in use."""
        return self._num_in_use

    def take(self, tenant: str) -> None:
        """Count one more slot of the tenant."""
        self._num_turns += 1
        self._last_turns[tenant] = self._num_turns
        self._in_use[tenant] += 1
        self._num_in_use += 1

    def release(self, tenant: str) -> None:
        """Count one slot less of the tenant."""
        self._in_use[tenant] -= 1
        self._num_in_use -= 1
        if not self._in_use[tenant]:
            del self._in_use[tenant]
            if tenant not in self._waiting:
                del self._last_turns[tenant]

    def push(self, tenant: str, request: T) -> None:
        """Queue a request."""
        self._waiting.setdefault(tenant, deque()).append(request)
        self._num_waiting += 1

    def pop(self) -> T | None:
        """Remove and return the next request and count its slot; None if none is queued."""
        if not self._waiting:
            return None
        tenant = min(self._waiting, key=self._precedence)
        request = self._waiting[tenant].popleft()
        self._removed(tenant)
        self.take(tenant)
        return request

    def remove(self, tenant: str, request: T) -> bool:
        """Remove a request from the queue; return False if it is not queued."""
        waiting = self._waiting.get(tenant)
        if waiting is None or request not in waiting:
            return False
        waiting.remove(request)
        self._removed(tenant)
        return True

    def can_displace(self, tenant: str) -> bool:
        """Return True if another tenant has more queued requests than this one would have with one more."""
        return self._num_queued(self._longest_queue) > self._num_queued(tenant) + 1

    def displace(self) -> T:
        """Remove and return the latest request of the tenant with the most queued requests.

        There must be one.
        """
        tenant = self._longest_queue
        request = self._waiting[tenant].pop()
        self._removed(tenant)
        return request

    def ahead_of(self, tenant: str) -> int:
        """Return how many queued requests would get a slot before another one of this tenant."""
        own = self._num_queued(tenant)
        level = self._in_use[tenant] + own
        others = (
            min(len(waiting), max(0, level - self._in_use[other] + 1))
            for other, waiting in self._waiting.items()
            if other != tenant
        )
        return own + sum(others)

    @property
    def _longest_queue(self) -> str:
        return max(self._waiting, key=self._num_queued, default="")

    def _num_queued(self, tenant: str) -> int:
        """Return the number of queued requests of the tenant."""
        return len(self._waiting.get(tenant, ()))

    def _precedence(self, tenant: str) -> tuple[int, int]:
        """Return the sort key of a tenant; the lowest one is next."""
        return self._in_use[tenant], self._last_turns.get(tenant, 0)

    def _removed(self, tenant: str) -> None:
        self._num_waiting -= 1
        if self._waiting[tenant]:
            return
        del self._waiting[tenant]
        if tenant not in self._in_use:
            self._last_turns.pop(tenant, None)
