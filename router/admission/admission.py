"""Admission control: limit concurrent and queued requests; reject the rest with a retry delay."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from flyserve.core.clock import Clock
from flyserve.core.errors import DeadlineExceeded, Overloaded
from flyserve.core.ewma import Ewma
from router.admission.fair_queue import FairQueue
from router.admission.slots import Slots
from router.requests.request import Deadline

_UNKNOWN_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0
_RECHECK_S = 0.1
"""Time between two looks at the number of places, while requests are queued."""
_NEWEST_SHARE = 0.1
"""Weight of the latest request in the averages."""
_CAUTION = 1.25
"""Safety factor on estimated times: an admitted request that misses its deadline wastes a slot of others."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A queued request."""

    tenant: str
    deadline: Deadline
    num_slots: int
    admitted_future: asyncio.Future[None]


def _unlimited() -> None:
    """Return no limit."""


class Admission:
    """Slots for choices, shared fairly between tenants, with a bounded queue of requests in front of them.

    A tenant is an opaque name: each tenant has a right to an equal share of the slots. The choices of a
    request get their slots together, and give them back one by one.
    """

    def __init__(
        self,
        max_concurrent: int,
        max_queued: int,
        clock: Clock,
        places: Callable[[], int | None] = _unlimited,
        slots_name: str = "slots",
    ) -> None:
        """Allow `max_concurrent` slots, and no more than `places` returns at present, if it is limited.

        `slots_name` is their name in messages.
        """
        self._max_concurrent = max_concurrent
        self._max_queued = max_queued
        self._clock = clock
        self._places = places
        self._slots_name = slots_name
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._recheck_timer: asyncio.TimerHandle | None = None
        self._held_s = Ewma(_NEWEST_SHARE)
        self._finished_s = Ewma(_NEWEST_SHARE)

    @property
    def queued(self) -> int:
        """Number of queued requests."""
        return len(self._queue)

    @property
    def queued_choices(self) -> int:
        """Number of choices of queued requests: places that are missing."""
        return self._queue.slots_waiting

    @property
    def admitted(self) -> int:
        """Number of slots in use."""
        return self._queue.in_use

    @property
    def limit(self) -> int:
        """Number of slots at present."""
        places = self._places()
        return self._max_concurrent if places is None else min(self._max_concurrent, places)

    def check(self, tenant: str, deadline: Deadline, num_choices: int = 1) -> None:
        """Raise what `slots` would raise immediately, before other work is spent on the request.

        Raises:
            Overloaded: The queue is full, or the expected wait exceeds the deadline.
            DeadlineExceeded: The deadline has passed.
        """
        if not self._is_free(self._num_slots(num_choices)):
            self._check_queue(tenant, deadline)

    def _check_queue(self, tenant: str, deadline: Deadline) -> None:
        """Raise an error if a request cannot be queued, or could not finish in time."""
        wait_s, remaining_s = self.estimate_wait_s(tenant), deadline.remaining_s()
        if wait_s is not None and remaining_s is not None:
            self._check_time(wait_s, self._finished_s.value or 0.0, remaining_s)
        if not self._max_queued:
            raise _rejection(f"{self.admitted} of {self.limit} {self._slots_name} are in use", wait_s)
        if self.queued >= self._max_queued and not self._queue.can_displace(tenant):
            raise _rejection(f"{self.queued} requests are queued already", wait_s)

    @asynccontextmanager
    async def slots(
        self,
        tenant: str,
        deadline: Deadline,
        num_choices: int = 1,
        priority: int = 0,
        is_admitted: bool = False,
    ) -> AsyncIterator[Slots]:
        """Hold a slot for each choice, or all that there are; wait for them in the bounded queue.

        A higher `priority` comes first among the tenant's own requests. One that `is_admitted` is the next
        part of a batch, of which an earlier part has just ended: it waits even where the queue is full.

        Raises:
            Overloaded: As `check`; or the queued request was displaced by a tenant with fewer queued
                requests.
            DeadlineExceeded: The deadline has passed, or is too close for the work when the slots become
                free.
        """
        held = Slots(self, tenant, deadline, priority, self._num_slots(num_choices))
        await self._acquire(held, is_admitted)
        started = self._clock.now()
        try:
            yield held
            self._finished_s.add(self._clock.now() - started)
        finally:
            self._held_s.add(self._clock.now() - started)
            self.release(tenant, held.num_unused)

    def estimate_wait_s(self, tenant: str) -> float | None:
        """Return the expected wait of another request of this tenant.

        None before the first request has ended.
        """
        if self._held_s.value is None:
            return None
        return (self._queue.ahead_of(tenant) + 1) * self._held_s.value / max(1, self.limit)

    async def acquire_next(self, held: Slots, number: int, when_queued: Callable[[], None]) -> None:
        """Wait for more slots, before all requests of the tenant with the same priority.

        `when_queued` is called as soon as they have their place in the queue.
        """
        waiter = self._waiter(held, number)
        self._queue.push(held.tenant, waiter, number, held.priority, is_first=True)
        when_queued()
        self._fill()
        await self._wait(waiter)

    def release(self, tenant: str, num_slots: int) -> None:
        """Give slots of a tenant back."""
        if num_slots:
            self._queue.release(tenant, num_slots)
            self._fill()

    @staticmethod
    def _check_time(wait_s: float, work_s: float, remaining_s: float) -> None:
        if _CAUTION * (wait_s + work_s) > remaining_s:
            needed = f"about {wait_s:.1f} s in the queue and {work_s:.1f} s of work"
            raise _rejection(
                f"the request cannot finish within {remaining_s:.1f} s: it needs {needed}", wait_s
            )

    def _num_slots(self, num_choices: int) -> int:
        """Return the number of slots that a request gets at once: fewer than choices if there are fewer."""
        return num_choices if num_choices <= 1 else min(num_choices, max(1, self.limit))

    def _is_free(self, num_slots: int) -> bool:
        """Return True if a request need not wait."""
        if self.queued:
            return False
        limit = self.limit
        return self.admitted + num_slots <= limit or (limit > 0 and not self.admitted)

    async def _acquire(self, held: Slots, is_admitted: bool) -> None:
        """Wait for the slots.

        NOTE: a released slot is assigned to a queued request at once, so no slot is free while one is queued,
        unless the next request needs several.
        """
        if self._is_free(held.num_unused):
            self._queue.take(held.tenant, held.num_unused)
            return
        if not is_admitted:
            self._check_queue(held.tenant, held.deadline)
            if self.queued >= self._max_queued:
                self._displace()
        waiter = self._waiter(held, held.num_unused)
        self._queue.push(held.tenant, waiter, held.num_unused, held.priority)
        await self._wait(waiter)

    def _waiter(self, held: Slots, num_slots: int) -> _Waiter:
        return _Waiter(held.tenant, held.deadline, num_slots, asyncio.get_running_loop().create_future())

    async def _wait(self, waiter: _Waiter) -> None:
        """Wait for the slots of a queued request."""
        if self._recheck_timer is None:
            self._start_recheck_timer()
        try:
            await waiter.admitted_future
        except BaseException:
            self._leave(waiter)
            raise

    def _start_recheck_timer(self) -> None:
        """Look again soon: the places change with replicas, and with the sequences of other routers."""
        self._recheck_timer = asyncio.get_running_loop().call_later(_RECHECK_S, self._recheck)

    def _recheck(self) -> None:
        self._recheck_timer = None
        self._fill()
        if self.queued:
            self._start_recheck_timer()

    def _displace(self) -> None:
        waiter = self._queue.displace()
        if not waiter.admitted_future.done():
            wait_s = self.estimate_wait_s(waiter.tenant)
            waiter.admitted_future.set_exception(
                _rejection("the queue is full and other tenants have fewer requests in it", wait_s)
            )

    def _leave(self, waiter: _Waiter) -> None:
        """Remove a request that no longer waits, or release the slots that it has just got."""
        admitted_future = waiter.admitted_future
        if self._queue.remove(waiter.tenant, waiter):
            self._fill()
            return
        if admitted_future.cancelled() or admitted_future.exception():
            return
        self.release(waiter.tenant, waiter.num_slots)

    def _fill(self) -> None:
        """Assign free slots to queued requests."""
        while self.queued and (waiter := self._queue.pop(self.limit - self.admitted)) is not None:
            if not self._offer(waiter):
                self._queue.release(waiter.tenant, waiter.num_slots)

    def _offer(self, waiter: _Waiter) -> bool:
        """Assign slots to a request; return False if the request cannot use them any more.

        NOTE: work that cannot finish in time is not started. Otherwise, after the system has become slower
        than it was when the queue was filled, every slot would go to a request that is about to expire.
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
