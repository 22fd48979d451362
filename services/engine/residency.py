"""Which sequences hold KV memory, and whose is taken when it runs out."""

from collections import OrderedDict
from collections.abc import Callable, Set
from typing import Protocol, TypeVar

from services.engine.base import Memory, Slot, Work


class Resident(Protocol):
    """A sequence as memory sees it."""

    slot: Slot

    def evict(self) -> None:
        """Its KV memory has been taken away."""


ResidentT = TypeVar("ResidentT", bound=Resident)


class Residency:
    """Sequences in order of their last use; the least recent gives way."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._open: dict[Slot, Resident] = {}
        self._holders: OrderedDict[Slot, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, num_tokens: int, make: Callable[[Slot], ResidentT]) -> ResidentT | None:
        """A new sequence with room for `num_tokens`; None while full. Nobody is evicted for it."""
        slot = self._memory.allocate(num_tokens)
        if slot is None:
            return None
        resident = make(slot)
        self._open[slot] = resident
        self._holders[slot] = None
        return resident

    def release(self, resident: Resident) -> None:
        """Gives the sequence's slot back; no effect on one that has none."""
        if self._open.get(resident.slot) is resident:
            del self._open[resident.slot]
            self._holders.pop(resident.slot, None)
            self._memory.free(resident.slot)

    def make_room(self, work: Work, spared: Set[Slot]) -> bool:
        """Finds room for `work`, taking it from sequences not spared, the least recent first."""
        while not self._memory.resize(work.slot, work.start + len(work.tokens)):
            victim = self.least_recent(spared)
            if victim is None:
                return False
            self.evict(victim)
        self._holders[work.slot] = None
        self._holders.move_to_end(work.slot)
        return True

    def least_recent(self, spared: Set[Slot]) -> Slot | None:
        """The slot with memory whose sequence was used least recently."""
        return next((slot for slot in self._holders if slot not in spared), None)

    def evict(self, slot: Slot) -> None:
        """Takes the slot's memory; its sequence is told."""
        self._memory.resize(slot, 0)
        del self._holders[slot]
        self._open[slot].evict()
