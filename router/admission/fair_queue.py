"""Fair queue: free slots go to tenants in turn, however many requests each of them has queued."""

from bisect import insort
from collections import Counter
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    """A queued request; within a tenant the lowest `rank` is next."""

    rank: tuple[int, int]
    num_slots: int
    request: T


class FairQueue(Generic[T]):
    """Slots in use and queued requests, by tenant; a request takes one or several slots.

    Free slots go to the tenant with the fewest slots, and there to the request with the highest priority, of
    these to the oldest. Among tenants with equally many slots, the one whose last turn is the longest ago
    comes first. A request that needs more slots than are free holds up all others.
    """

    def __init__(self) -> None:
        self._in_use: Counter[str] = Counter()
        self._waiting: dict[str, list[_Entry[T]]] = {}
        self._slots_waiting: Counter[str] = Counter()
        self._last_turns: dict[str, int] = {}
        self._num_turns = 0
        self._num_pushed = 0
        self._num_waiting = 0
        self._num_in_use = 0

    def __len__(self) -> int:
        """Return the number of queued requests."""
        return self._num_waiting

    @property
    def in_use(self) -> int:
        """Slots in use."""
        return self._num_in_use

    @property
    def slots_waiting(self) -> int:
        """Slots that the queued requests need."""
        return self._slots_waiting.total()

    def take(self, tenant: str, num_slots: int = 1) -> None:
        """Count more slots of the tenant."""
        self._num_turns += 1
        self._last_turns[tenant] = self._num_turns
        self._in_use[tenant] += num_slots
        self._num_in_use += num_slots

    def release(self, tenant: str, num_slots: int = 1) -> None:
        """Count fewer slots of the tenant."""
        self._in_use[tenant] -= num_slots
        self._num_in_use -= num_slots
        if not self._in_use[tenant]:
            del self._in_use[tenant]
            if tenant not in self._waiting:
                self._last_turns.pop(tenant, None)

    def push(
        self, tenant: str, request: T, num_slots: int = 1, priority: int = 0, is_first: bool = False
    ) -> None:
        """Queue a request; if `is_first`, before all requests of its tenant with the same priority."""
        self._num_pushed += 1
        rank = (-priority, -self._num_pushed if is_first else self._num_pushed)
        entry = _Entry(rank, num_slots, request)
        insort(self._waiting.setdefault(tenant, []), entry, key=lambda each: each.rank)
        self._slots_waiting[tenant] += num_slots
        self._num_waiting += 1

    def pop(self, num_free: int) -> T | None:
        """Remove and return the next request, and count its slots.

        None if none is queued, or if it needs more than `num_free` slots although some are in use. If none is
        in use, a request that needs more than there are takes all.
        """
        if not self._waiting or num_free <= 0:
            return None
        tenant = min(self._waiting, key=self._precedence)
        entry = self._waiting[tenant][0]
        if entry.num_slots > num_free and self._num_in_use:
            return None
        self._removed(tenant, self._waiting[tenant].pop(0))
        self.take(tenant, entry.num_slots)
        return entry.request

    def remove(self, tenant: str, request: T) -> bool:
        """Remove a request from the queue; return False if it is not queued."""
        waiting = self._waiting.get(tenant, [])
        for index, entry in enumerate(waiting):
            if entry.request is request:
                self._removed(tenant, waiting.pop(index))
                return True
        return False

    def can_displace(self, tenant: str) -> bool:
        """Return True if another tenant has more queued requests than this one would have with one more."""
        return self._num_queued(self._longest_queue) > self._num_queued(tenant) + 1

    def displace(self) -> T:
        """Remove and return the last request of the tenant with the most queued requests.

        There must be one.
        """
        tenant = self._longest_queue
        entry = self._waiting[tenant].pop()
        self._removed(tenant, entry)
        return entry.request

    def ahead_of(self, tenant: str) -> int:
        """Return how many slots queued requests would get before another request of this tenant."""
        own = self._slots_waiting[tenant]
        level = self._in_use[tenant] + own
        others = (
            min(waiting, max(0, level - self._in_use[other] + 1))
            for other, waiting in self._slots_waiting.items()
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

    def _removed(self, tenant: str, entry: _Entry[T]) -> None:
        self._num_waiting -= 1
        self._slots_waiting[tenant] -= entry.num_slots
        if self._waiting[tenant]:
            return
        del self._waiting[tenant], self._slots_waiting[tenant]
        if tenant not in self._in_use:
            self._last_turns.pop(tenant, None)
