"""Admission control: bounded, fair between tenants, with correct retry delays."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.errors import DeadlineExceeded, Overloaded
from router.admission.admission import Admission
from router.admission.fair_queue import FairQueue
from router.admission.slots import Slots
from router.requests.request import Deadline
from tests.support.clock import VirtualClock

TENANTS = st.sampled_from("abcd")


@given(st.lists(TENANTS, max_size=20), st.lists(TENANTS, max_size=30), TENANTS)
def test_the_queue_ahead_is_as_long_as_estimated(in_use: list[str], waiting: list[str], tenant: str) -> None:
    queue: FairQueue[str] = FairQueue()
    for each in in_use:
        queue.take(each)
    for each in waiting:
        queue.push(each, each)
    said = queue.ahead_of(tenant)
    queue.push(tenant, "the new one")
    ahead = 0
    while queue.pop(1) != "the new one":
        ahead += 1
    assert said - 3 <= ahead <= said, "each of three other tenants may have its turn just before or after"


@given(st.lists(TENANTS, min_size=1, max_size=40))
def test_slots_are_shared_as_equally_as_the_queues_allow(waiting: list[str]) -> None:
    queue: FairQueue[str] = FairQueue()
    for each in waiting:
        queue.push(each, each)
    got, left = Counter[str](), Counter(waiting)
    while (each := queue.pop(1)) is not None:
        got[each] += 1
        left[each] -= 1
        assert all(got[each] <= got[other] + 1 for other in left if left[other])
    assert got == Counter(waiting) and queue.in_use == len(waiting) and len(queue) == 0


class Office:
    """An admission on its own clock, with requests that hold slots until the test ends them."""

    def __init__(self, max_concurrent: int, max_queued: int) -> None:
        self.clock = VirtualClock()
        self.places: int | None = None
        self.admission = Admission(max_concurrent, max_queued, self.clock, lambda: self.places)
        self.served: list[str] = []
        self._leaves: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def enter(
        self, name: str, tenant: str = "", timeout_s: float | None = None, n: int = 1, priority: int = 0
    ) -> asyncio.Task[None]:
        """Start a request; it has a slot, is queued, or was rejected when this returns."""
        self._leaves[name] = asyncio.Event()
        task = self._tasks[name] = asyncio.create_task(self._visit(name, tenant, timeout_s, n, priority))
        await self.settle()
        return task

    async def leave(self, name: str) -> None:
        self._leaves[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        assert (self.admission.admitted, self.admission.queued) == (0, 0)

    def slots(
        self, tenant: str, timeout_s: float | None, n: int = 1, priority: int = 0
    ) -> AbstractAsyncContextManager[Slots]:
        return self.admission.slots(tenant, Deadline(self.clock, timeout_s), n, priority)

    async def _visit(self, name: str, tenant: str, timeout_s: float | None, n: int, priority: int) -> None:
        async with self.slots(tenant, timeout_s, n, priority):
            self.served.append(name)
            await self._leaves[name].wait()


@asynccontextmanager
async def office(max_concurrent: int = 1, max_queued: int = 4) -> AsyncIterator[Office]:
    made = Office(max_concurrent, max_queued)
    try:
        yield made
    finally:
        await made.end()


async def visit(made: Office, name: str, seconds: float) -> None:
    """Run a whole request that holds its slot for this long."""
    await made.enter(name)
    made.clock.advance(seconds)
    await made.leave(name)


async def test_requests_are_served_in_order_and_the_queue_is_bounded() -> None:
    async with office(max_queued=2) as made:
        for name in "abc":
            await made.enter(name)
        rejected = await made.enter("d")
        assert isinstance(rejected.exception(), Overloaded)
        for name in "abc":
            await made.leave(name)
        assert made.served == ["a", "b", "c"]


async def test_a_full_queue_displaces_the_latest_request_of_the_tenant_with_most() -> None:
    async with office(max_queued=3) as made:
        tasks = [await made.enter(f"flood-{number}", "flood") for number in range(4)]
        await made.enter("quiet", "quiet")
        assert isinstance(tasks[3].exception(), Overloaded) and made.admission.queued == 3
        await made.leave("flood-0")
        assert made.served == ["flood-0", "quiet"]


async def test_a_rejection_has_the_time_after_which_the_request_would_have_had_a_slot() -> None:
    async with office(max_concurrent=2, max_queued=4) as made:
        await visit(made, "first", 6.0)
        for number in range(6):
            await made.enter(str(number))
        rejected = (await made.enter("late")).exception()
        assert isinstance(rejected, Overloaded) and rejected.retry_after_s == pytest.approx(15.0)


async def test_a_request_that_cannot_make_its_deadline_is_rejected_at_once() -> None:
    async with office() as made:
        await visit(made, "first", 4.0)
        await made.enter("running")
        patient = await made.enter("patient", timeout_s=10.5)
        hasty = await made.enter("hasty", timeout_s=14.0)
        assert not patient.done()
        assert isinstance(hasty.exception(), Overloaded)
        assert "within 14.0 s" in str(hasty.exception())
        with pytest.raises(Overloaded):
            made.admission.check("", Deadline(made.clock, 14.0))


async def test_nothing_is_rejected_for_its_deadline_while_slots_are_free() -> None:
    async with office(max_concurrent=2) as made:
        await visit(made, "first", 4.0)
        assert not (await made.enter("hasty", timeout_s=0.1)).done()


async def test_a_deadline_that_passes_in_the_queue_costs_no_slot() -> None:
    async with office() as made:
        await made.enter("running")
        late, after = await made.enter("late", timeout_s=5.0), await made.enter("after")
        made.clock.advance(6.0)
        await made.leave("running")
        assert isinstance(late.exception(), DeadlineExceeded) and not after.done()
        assert made.served == ["running", "after"]


async def test_work_that_cannot_finish_in_time_is_not_started() -> None:
    async with office() as made:
        await visit(made, "first", 2.0)
        await made.enter("slower than it was")
        hopeful, after = await made.enter("hopeful", timeout_s=9.0), await made.enter("after")
        made.clock.advance(8.0)
        await made.leave("slower than it was")
        assert isinstance(hopeful.exception(), DeadlineExceeded) and not after.done()
        assert "hopeful" not in made.served


@pytest.mark.parametrize("moment", ["waiting", "just admitted"])
async def test_a_cancelled_request_frees_its_slot(moment: str) -> None:
    async with office() as made:
        await made.enter("running")
        leaving, after = await made.enter("leaving"), await made.enter("after")
        if moment == "just admitted":
            made._leaves["running"].set()
            while made.admission.queued == 2:
                await asyncio.sleep(0)
        leaving.cancel()
        await made.settle()
        await made.leave("running")
        assert made.served == ["running", "after"] and not after.done()


async def test_priority_orders_the_requests_of_a_tenant_and_not_the_tenants() -> None:
    async with office(max_queued=10) as made:
        await made.enter("first", "a")
        for name, priority in (("low", -1), ("usual", 0), ("high", 5)):
            await made.enter(name, "a", priority=priority)
        await made.enter("other", "b", priority=-9)
        for name in ("first", "other", "high", "usual", "low"):
            await made.leave(name)
        assert made.served == ["first", "other", "high", "usual", "low"]


async def test_the_choices_of_a_request_get_their_slots_together() -> None:
    async with office(max_concurrent=4) as made:
        await made.enter("one", n=2)
        await made.enter("two", n=3)
        await made.enter("three")
        assert made.served == ["one"] and made.admission.queued_choices == 4, "no later request overtakes"
        await made.leave("one")
        assert made.served == ["one", "two", "three"] and made.admission.admitted == 4


async def test_a_request_with_more_choices_than_slots_gets_all_and_then_one_by_one() -> None:
    async with office(max_concurrent=2) as made, made.slots("", None, n=3) as slots:
        assert made.admission.admitted == 2
        third_slot = slots.slot()
        async with slots.slot():
            async with slots.slot():
                third = asyncio.create_task(third_slot.__aenter__())
                await made.enter("later")
                assert not third.done()
            await made.settle()
            assert third.done() and made.served == []
            third.result().release()
            await made.settle()
            assert made.served == ["later"]


async def test_the_limit_follows_the_places() -> None:
    async with office(max_concurrent=8) as made:
        made.places = 1
        for name in "abc":
            await made.enter(name)
        assert made.served == ["a"]
        made.places = 2
        await asyncio.sleep(0.3)
        assert made.served == ["a", "b"]
        made.places = None
        await made.leave("a")
        assert made.served == ["a", "b", "c"]


async def test_a_refused_choice_waits_before_all_later_requests() -> None:
    async with office(max_concurrent=1) as made:
        made.places = 1
        async with made.slots("", None) as slots, slots.slot() as slot:
            await made.enter("later")
            made.places = 0
            exchange = asyncio.create_task(slot.acquire())
            await made.settle()
            assert made.served == [] and not exchange.done() and made.admission.admitted == 0
            made.places = 1
            await asyncio.sleep(0.3)
            assert exchange.done() and made.served == []
        await made.settle()
        assert made.served == ["later"]


async def test_a_request_that_exchanges_its_slots_holds_none_while_it_waits() -> None:
    async with office(max_concurrent=2) as made, made.slots("a", None, n=2) as slots:
        await made.enter("other", "b", n=2)
        exchange = asyncio.create_task(slots.exchange())
        await made.settle()
        assert made.served == ["other"] and not exchange.done()
        await made.leave("other")
        assert exchange.done() and (made.admission.admitted, slots.num_unused) == (2, 2)


async def test_a_cancelled_exchange_leaves_no_slot_in_use() -> None:
    async with office(max_concurrent=2) as made, made.slots("a", None, n=2) as slots:
        await made.enter("other", "b", n=2)
        exchange = asyncio.create_task(slots.exchange())
        await made.settle()
        exchange.cancel()
        await made.leave("other")
        assert made.admission.admitted == slots.num_unused == 0


async def test_a_request_counts_the_places_of_all_targets_only_where_they_matter() -> None:
    counted: list[None] = []
    admission = Admission(4, 4, VirtualClock(), lambda: counted.append(None))
    for _ in range(3):
        admission.check("", Deadline(VirtualClock(), None))
        async with admission.slots("", Deadline(VirtualClock(), None)) as slots, slots.slot():
            pass
    assert len(counted) == 2 * 3, "at the check, and for the slot"
