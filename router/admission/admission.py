"""Back-pressure: so many requests decode, so many wait, the rest is told when to come back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fly.clock import Clock
from fly.errors import DeadlineExceeded, Overloaded
from fly.ewma import Ewma
from router.admission.fair_queue import FairQueue
from router.requests.deadline import Deadline

_UNKNOWN_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
_NEWEST_SHARE = 0.1
"""Weight of the latest request in the averages."""
_CAUTION = 1.25
"""Estimates err, and what is let in and not finished in time costs those who could have been."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """One that waits for a place."""

    tenant: str
    deadline: Deadline
    has_place: asyncio.Future[None]


class Admission:
    """Places for requests, shared fairly between tenants, and a bounded queue in front of them.

    A tenant is whoever has a claim to a share of its own: an opaque name.
    """

    def __init__(self, max_concurrent: int, max_queued: int, clock: Clock) -> None:
        self._max_concurrent = max_concurrent
        self._max_queued = max_queued
        self._clock = clock
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._held_s = Ewma(_NEWEST_SHARE)
        self._finished_s = Ewma(_NEWEST_SHARE)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def admitted(self) -> int:
        """Requests that have a place."""
        return self._queue.in_use

    def check(self, tenant: str, deadline: Deadline) -> None:
        """What `place` would say at once, before anything else is spent on the request.

        Raises:
            Overloaded: The queue has no room for it, or is too long for its deadline.
            DeadlineExceeded: It has passed.
        """
        if self.admitted < self._max_concurrent and not self.queued:
            return
        wait_s, remaining_s = self.estimate_wait_s(tenant), deadline.remaining_s()
        if wait_s is not None and remaining_s is not None:
            self._check_time(wait_s, self._finished_s.value or 0.0, remaining_s)
        if self.queued >= self._max_queued and not self._queue.has_right(tenant):
            raise _rejection(f"{self.queued} requests are waiting already", wait_s)

    @asynccontextmanager
    async def place(self, tenant: str, deadline: Deadline) -> AsyncIterator[None]:
        """Holds a place; waits for one within the bounded queue.

        Raises:
            Overloaded: As `check`; or it waited, and had to give way to a tenant that has less waiting.
            DeadlineExceeded: When its turn came, it had passed, or was too near for the work.
        """
        self.check(tenant, deadline)
        await self._acquire(tenant, deadline)
        started = self._clock.now()
        try:
            yield
            self._finished_s.add(self._clock.now() - started)
        finally:
            self._held_s.add(self._clock.now() - started)
            self._queue.give_back(tenant)
            self._fill()

    def estimate_wait_s(self, tenant: str) -> float | None:
        """How long another request of this tenant would wait, as things go; None while nothing is known."""
        if self._held_s.value is None:
            return None
        return (self._queue.ahead_of(tenant) + 1) * self._held_s.value / self._max_concurrent

    @staticmethod
    def _check_time(wait_s: float, work_s: float, remaining_s: float) -> None:
        if _CAUTION * (wait_s + work_s) > remaining_s:
            needed = f"about {wait_s:.1f} s until its turn and {work_s:.1f} s to finish"
            raise _rejection(f"it cannot be done within {remaining_s:.1f} s: it takes {needed}", wait_s)

    async def _acquire(self, tenant: str, deadline: Deadline) -> None:
        """NOTE: whoever leaves a place fills it, so none is free while somebody waits."""
        if self.admitted < self._max_concurrent:
            self._queue.take(tenant)
            return
        if self.queued >= self._max_queued:
            self._displace()
        waiter = _Waiter(tenant, deadline, asyncio.get_running_loop().create_future())
        self._queue.push(tenant, waiter)
        try:
            await waiter.has_place
        except BaseException:
            self._leave(waiter)
            raise

    def _displace(self) -> None:
        waiter = self._queue.displace()
        if not waiter.has_place.done():
            wait_s = self.estimate_wait_s(waiter.tenant)
            waiter.has_place.set_exception(_rejection("others have less waiting in a full queue", wait_s))

    def _leave(self, waiter: _Waiter) -> None:
        """It waits no more, or has no use for the place that it has just got."""
        has_place = waiter.has_place
        if self._queue.remove(waiter.tenant, waiter) or has_place.cancelled() or has_place.exception():
            return
        self._queue.give_back(waiter.tenant)
        self._fill()

    def _fill(self) -> None:
        while self.admitted < self._max_concurrent and (waiter := self._queue.pop()) is not None:
            if not self._offer(waiter):
                self._queue.give_back(waiter.tenant)

    def _offer(self, waiter: _Waiter) -> bool:
        """Gives a place to a request that still has a use for it; False where it has none.

        NOTE: work that will not be done in time is not begun. Else, once the system is slower than when the
        queue was filled, every place would go to a request that is about to be given up.
        """
        if waiter.has_place.done():
            return False
        try:
            self._check_turn(waiter.deadline.remaining_s())
        except DeadlineExceeded as error:
            waiter.has_place.set_exception(error)
            return False
        waiter.has_place.set_result(None)
        return True

    def _check_turn(self, remaining_s: float | None) -> None:
        work_s = self._finished_s.value or 0.0
        if remaining_s is not None and work_s > remaining_s:
            found = f"its turn came {remaining_s:.1f} s before its deadline"
            raise DeadlineExceeded(f"{found}, the work takes about {work_s:.1f} s")


def _rejection(reason: str, wait_s: float | None) -> Overloaded:
    """With the time after which the request would have had its place, had it been let in."""
    return Overloaded(reason, min(wait_s, _LONGEST_WAIT_S) if wait_s is not None else _UNKNOWN_WAIT_S)
