"""Admission control: limit concurrent and queued requests; reject the rest with a retry delay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fly.clock import Clock
from fly.errors import DeadlineExceeded, Overloaded
from fly.ewma import Ewma
from router.admission.fair_queue import FairQueue
from router.requests.request import Deadline

_UNKNOWN_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
_NEWEST_SHARE = 0.1
"""Weight of the latest request in the averages."""
_CAUTION = 1.25
"""Safety factor on estimated times: an admitted request that misses its deadline wastes a slot of others."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A queued request."""

    tenant: str
    deadline: Deadline
    admitted_future: asyncio.Future[None]


class Admission:
    """Slots for requests, shared fairly between tenants, with a bounded queue in front of them.

    A tenant is an opaque name: each tenant has a right to an equal share of the slots.
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
        """Number of queued requests."""
        return len(self._queue)

    @property
    def admitted(self) -> int:
        """Number of requests that have a slot."""
        return self._queue.in_use

    def check(self, tenant: str, deadline: Deadline) -> None:
        """Raise what `slot` would raise immediately, before other work is spent on the request.

        Raises:
            Overloaded: The queue is full, or the expected wait exceeds the deadline.
            DeadlineExceeded: The deadline has passed.
        """
        if self.admitted < self._max_concurrent and not self.queued:
            return
        wait_s, remaining_s = self.estimate_wait_s(tenant), deadline.remaining_s()
        if wait_s is not None and remaining_s is not None:
            self._check_time(wait_s, self._finished_s.value or 0.0, remaining_s)
        if self.queued >= self._max_queued and not self._queue.can_displace(tenant):
            raise _rejection(f"{self.queued} requests are queued already", wait_s)

    @asynccontextmanager
    async def slot(self, tenant: str, deadline: Deadline) -> AsyncIterator[None]:
        """Hold a slot; wait for one in the bounded queue if necessary.

        Raises:
            Overloaded: As `check`; or the queued request was displaced by a tenant with fewer queued
                requests.
            DeadlineExceeded: The deadline has passed, or is too close for the work when the slot becomes
                free.
        """
        self.check(tenant, deadline)
        await self._acquire(tenant, deadline)
        started = self._clock.now()
        try:
            yield
            self._finished_s.add(self._clock.now() - started)
        finally:
            self._held_s.add(self._clock.now() - started)
            self._queue.release(tenant)
            self._fill()

    def estimate_wait_s(self, tenant: str) -> float | None:
        """Return the expected wait of another request of this tenant.

        None before the first request has ended.
        """
        if self._held_s.value is None:
            return None
        return (self._queue.ahead_of(tenant) + 1) * self._held_s.value / self._max_concurrent

    @staticmethod
    def _check_time(wait_s: float, work_s: float, remaining_s: float) -> None:
        if _CAUTION * (wait_s + work_s) > remaining_s:
            needed = f"about {wait_s:.1f} s in the queue and {work_s:.1f} s of work"
            raise _rejection(
                f"the request cannot finish within {remaining_s:.1f} s: it needs {needed}", wait_s
            )

    async def _acquire(self, tenant: str, deadline: Deadline) -> None:
        """Wait for a slot.

        NOTE: a released slot is assigned to a queued request at once, so no slot is free while one is queued.
        """
        if self.admitted < self._max_concurrent:
            self._queue.take(tenant)
            return
        if self.queued >= self._max_queued:
            self._displace()
        waiter = _Waiter(tenant, deadline, asyncio.get_running_loop().create_future())
        self._queue.push(tenant, waiter)
        try:
            await waiter.admitted_future
        except BaseException:
            self._leave(waiter)
            raise

    def _displace(self) -> None:
        waiter = self._queue.displace()
        if not waiter.admitted_future.done():
            wait_s = self.estimate_wait_s(waiter.tenant)
            waiter.admitted_future.set_exception(
                _rejection("the queue is full and other tenants have fewer requests in it", wait_s)
            )

    def _leave(self, waiter: _Waiter) -> None:
        """Remove a request that no longer waits, or release the slot that it has just got."""
        admitted_future = waiter.admitted_future
        if (
            self._queue.remove(waiter.tenant, waiter)
            or admitted_future.cancelled()
            or admitted_future.exception()
        ):
            return
        self._queue.release(waiter.tenant)
        self._fill()

    def _fill(self) -> None:
        while self.admitted < self._max_concurrent and (waiter := self._queue.pop()) is not None:
            if not self._offer(waiter):
                self._queue.release(waiter.tenant)

    def _offer(self, waiter: _Waiter) -> bool:
        """Assign a slot to a request; return False if the request cannot use it any more.

        NOTE: work that cannot finish in time is not started. Otherwise, after the system has become slower
            than
        it was when the queue was filled, every slot would go to a request that is about to expire.
        """
        if waiter.admitted_future.done():
            return False
        try:
            self._check_work_time(waiter.deadline.remaining_s())
        except DeadlineExceeded as error:
            waiter.admitted_future.set_exception(error)
            return False
        waiter.admitted_future.set_result(None)
        return True

    def _check_work_time(self, remaining_s: float | None) -> None:
        work_s = self._finished_s.value or 0.0
        if remaining_s is not None and work_s > remaining_s:
            found = f"a slot became free {remaining_s:.1f} s before the deadline"
            raise DeadlineExceeded(f"{found}, the work takes about {work_s:.1f} s")


def _rejection(reason: str, wait_s: float | None) -> Overloaded:
    """Return an error whose retry delay is the time after which the request would have had a slot."""
    return Overloaded(reason, min(wait_s, _LONGEST_WAIT_S) if wait_s is not None else _UNKNOWN_WAIT_S)
