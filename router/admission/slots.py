"""Slots of a request that was admitted, and the slot of each of its choices."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from router.requests.request import Deadline


class _Source(Protocol):
    """The admission control that gives slots and takes them back."""

    async def acquire_next(self, held: "Slots", number: int, when_queued: Callable[[], None]) -> None: ...

    def release(self, tenant: str, num_slots: int) -> None: ...


class Slots:
    """The slots of one request, for its choices.

    If there are fewer slots than choices, the others start one after the other, as slots become free.
    """

    def __init__(
        self, admission: _Source, tenant: str, deadline: Deadline, priority: int, number: int
    ) -> None:
        """Hold `number` slots that no choice uses yet."""
        self.tenant = tenant
        self.deadline = deadline
        self.priority = priority
        self.num_unused = number
        self._admission = admission

    async def exchange(self) -> None:
        """Wait for as many slots as no choice uses, which are given back first; see `Slot.acquire`.

        A request that holds some of its slots while it waits for others could wait for itself.
        """
        number, self.num_unused = self.num_unused, 0
        await self._admission.acquire_next(self, number, lambda: self._admission.release(self.tenant, number))
        self.num_unused = number

    @asynccontextmanager
    async def slot(self) -> AsyncIterator["Slot"]:
        """Use one slot for one choice; wait for it if all are in use. Raises what `Admission.slots` does."""
        used = Slot(self, self._admission)
        if self.num_unused:
            self.num_unused -= 1
            used.is_held = True
        else:
            await used.acquire()
        try:
            yield used
        finally:
            used.release()


class Slot:
    """The slot of one choice."""

    def __init__(self, slots: Slots, admission: _Source) -> None:
        self.is_held = False
        self._slots = slots
        self._admission = admission

    async def acquire(self) -> None:
        """Wait for a slot, before all requests of the tenant with the same priority.

        A slot that is held is given back first, in exchange for the later one: every target has refused the
        choice. Raises what `Admission.slots` does.
        """
        await self._admission.acquire_next(self._slots, 1, self.release)
        self.is_held = True

    def release(self) -> None:
        """Give the slot back, if it is held."""
        if self.is_held:
            self.is_held = False
            self._admission.release(self._slots.tenant, 1)
