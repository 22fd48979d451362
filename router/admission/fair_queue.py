"""Who gets the next place: tenants in turn, whatever each of them has waiting."""

from collections import Counter, deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Places in use and requests that wait, by tenant.

    A free place goes to the tenant that has the fewest, and there to the request that came first; of tenants
    with as many, the one goes first whose last turn lies furthest back.
    """

    def __init__(self) -> None:
        self._in_use: Counter[str] = Counter()
        self._waiting: dict[str, deque[T]] = {}
        self._last_turns: dict[str, int] = {}
        self._num_turns = 0
        self._num_waiting = 0
        self._num_in_use = 0

    def __len__(self) -> int:
        """Requests that wait."""
        return self._num_waiting

    @property
    def in_use(self) -> int:
        """Places."""
        return self._num_in_use

    def take(self, tenant: str) -> None:
        """The tenant uses one more place."""
        self._num_turns += 1
        self._last_turns[tenant] = self._num_turns
        self._in_use[tenant] += 1
        self._num_in_use += 1

    def give_back(self, tenant: str) -> None:
        """The tenant uses one less."""
        self._in_use[tenant] -= 1
        self._num_in_use -= 1
        if not self._in_use[tenant]:
            del self._in_use[tenant]
            if tenant not in self._waiting:
                del self._last_turns[tenant]

    def push(self, tenant: str, request: T) -> None:
        """A request begins to wait."""
        self._waiting.setdefault(tenant, deque()).append(request)
        self._num_waiting += 1

    def pop(self) -> T | None:
        """The next request, which takes a place; None where none waits."""
        if not self._waiting:
            return None
        tenant = min(self._waiting, key=self._precedence)
        request = self._waiting[tenant].popleft()
        self._removed(tenant)
        self.take(tenant)
        return request

    def remove(self, tenant: str, request: T) -> bool:
        """The request waits no more; False where it did not."""
        waiting = self._waiting.get(tenant)
        if waiting is None or request not in waiting:
            return False
        waiting.remove(request)
        self._removed(tenant)
        return True

    def has_right(self, tenant: str) -> bool:
        """Whether some other tenant has more waiting than this one would have with one more."""
        return self._line(self._greediest) > self._line(tenant) + 1

    def displace(self) -> T:
        """Takes out the latest request of whoever has the most waiting; there must be one."""
        tenant = self._greediest
        request = self._waiting[tenant].pop()
        self._removed(tenant)
        return request

    def ahead_of(self, tenant: str) -> int:
        """How many requests would get a place before another one of this tenant, as things stand."""
        own = self._line(tenant)
        level = self._in_use[tenant] + own
        others = (
            min(len(waiting), max(0, level - self._in_use[other] + 1))
            for other, waiting in self._waiting.items()
            if other != tenant
        )
        return own + sum(others)

    @property
    def _greediest(self) -> str:
        return max(self._waiting, key=self._line, default="")

    def _line(self, tenant: str) -> int:
        """Requests of the tenant that wait."""
        return len(self._waiting.get(tenant, ()))

    def _precedence(self, tenant: str) -> tuple[int, int]:
        """The lowest has the next turn."""
        return self._in_use[tenant], self._last_turns.get(tenant, 0)

    def _removed(self, tenant: str) -> None:
        self._num_waiting -= 1
        if self._waiting[tenant]:
            return
        del self._waiting[tenant]
        if tenant not in self._in_use:
            self._last_turns.pop(tenant, None)
