"""Which sequences hold KV memory, whose is taken when it runs out, and what of closed ones is kept."""

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Protocol, TypeVar

from fly.blocks import BLOCK_TOKENS, BlockKey
from services.engine.base import Memory, Slot, Work
from services.engine.memory.prefix_cache import PrefixIndex


class Resident(Protocol):
    """A sequence as memory sees it."""

    slot: Slot

    def evict(self) -> None:
        """Its KV memory has been taken away."""


ResidentT = TypeVar("ResidentT", bound=Resident)


class Residency:
    """Open sequences and cached prefixes, each in order of their last use; the least recent gives way.

    A closed sequence leaves its slot behind as cached, with what it has published. What is cached takes no
    place, and gives way first, to whatever an open sequence or a new one needs.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._open: dict[Slot, Resident] = {}
        self._holders: OrderedDict[Slot, None] = OrderedDict()
        self._cached: OrderedDict[Slot, None] = OrderedDict()
        self._index = PrefixIndex()

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, num_tokens: int, make: Callable[[Slot], ResidentT]) -> ResidentT | None:
        """A new sequence with room for `num_tokens`; None while full. No open one is evicted for it."""
        if len(self._open) >= self._memory.max_sequences or num_tokens > self._available:
            return None
        while (slot := self._memory.allocate(num_tokens)) is None:
            self._drop_oldest()
        resident = make(slot)
        self._open[slot] = resident
        self._touch(slot)
        return resident

    def release(self, resident: Resident) -> None:
        """The sequence is closed; no effect on one that was."""
        slot = resident.slot
        if self._open.get(slot) is not resident:
            return
        del self._open[slot]
        self._holders.pop(slot, None)
        if self._index.num_blocks(slot):
            self._keep(slot)
        else:
            self._free(slot)

    def drop_cached(self) -> None:
        """Frees all that closed sequences left behind."""
        while self._cached:
            self._drop_oldest()

    def make_room(self, work: Work, spared: Set[Slot]) -> bool:
        """Finds room for `work`, taking it from sequences not spared, the least recent first."""
        while not self._fits(partial(self._memory.resize, work.slot, work.end, work.start)):
            victim = self.least_recent(spared)
            if victim is None:
                return False
            self.evict(victim)
        self._index.truncate(work.slot, work.start)
        self._touch(work.slot)
        return True

    def least_recent(self, spared: Set[Slot]) -> Slot | None:
        """The slot with memory whose open sequence was used least recently."""
        return next((slot for slot in self._holders if slot not in spared), None)

    def evict(self, slot: Slot) -> None:
        """Takes the slot's memory; its sequence is told."""
        self._memory.resize(slot, 0)
        self._index.forget(slot)
        del self._holders[slot]
        self._open[slot].evict()

    def num_published(self, slot: Slot) -> int:
        """As `Prefixes`."""
        return self._index.num_blocks(slot)

    def publish(self, slot: Slot, keys: Sequence[BlockKey]) -> None:
        """As `Prefixes`."""
        self._index.extend(slot, keys)

    def reuse(self, slot: Slot, keys: Sequence[BlockKey], known_blocks: int) -> int:
        """As `Prefixes`; room is taken from what is cached, but from no open sequence."""
        match = self._index.match(keys, known_blocks, slot)
        if match is None:
            return 0
        if match.slot in self._cached:
            self._cached.move_to_end(match.slot)
        copy = partial(self._memory.copy_prefix, match.slot, slot, match.num_blocks * BLOCK_TOKENS)
        if not self._fits(copy, spared=match.slot):
            return 0
        self._index.truncate(slot, known_blocks * BLOCK_TOKENS)
        self._touch(slot)
        return match.num_blocks

    @property
    def _available(self) -> int:
        """Positions that can be had without taking them from an open sequence."""
        return self._memory.kv_capacity - self._memory.kv_used + self._memory.kv_cached

    def _fits(self, take: Callable[[], bool], spared: Slot | None = None) -> bool:
        """Whether memory can be taken once enough of what is cached is dropped, the least recent first."""
        while not take():
            oldest = next(iter(self._cached), spared)
            if oldest is None or oldest == spared:
                return False
            self._drop(oldest)
        return True

    def _keep(self, slot: Slot) -> None:
        """What a closed sequence has published stays, unless it is there already; what it covers goes."""
        if known := self._index.covering(slot) & self._cached.keys():
            self._cached.move_to_end(min(known))
            self._free(slot)
            return
        for other in [other for other in self._cached if slot in self._index.covering(other)]:
            self._drop(other)
        self._memory.retire(slot, self._index.num_blocks(slot) * BLOCK_TOKENS)
        self._cached[slot] = None

    def _touch(self, slot: Slot) -> None:
        self._holders[slot] = None
        self._holders.move_to_end(slot)

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._cached)))

    def _drop(self, slot: Slot) -> None:
        del self._cached[slot]
        self._free(slot)

    def _free(self, slot: Slot) -> None:
        self._index.forget(slot)
        self._memory.free(slot)
