"""Assign KV memory to sequences, evict when it is full, and keep prefixes of closed sequences as cache."""

from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Protocol, TypeVar

from fly.blocks import BLOCK_TOKENS, BlockKey
from services.engine.base import ForwardInput, KvAllocator, KvSlot
from services.engine.memory.prefix_cache import PrefixCache, PrefixIndex


class EvictableSequence(Protocol):
    """An open sequence, as the memory manager sees it."""

    slot: KvSlot

    def evict(self) -> None:
        """Called when its KV memory has been evicted."""


SequenceT = TypeVar("SequenceT", bound=EvictableSequence)


class KvCacheManager(PrefixCache):
    """Open sequences and cached prefixes, each in order of their last use; the least recent is evicted first.

    A closed sequence leaves its slot behind as cache, with the blocks that it has published. Cached slots do
    not count as sequences, and are dropped first when an open or a new sequence needs memory.
    """

    def __init__(self, memory: KvAllocator) -> None:
        self._memory = memory
        self._open: dict[KvSlot, EvictableSequence] = {}
        self._recently_used: OrderedDict[KvSlot, None] = OrderedDict()
        self._cached: OrderedDict[KvSlot, None] = OrderedDict()
        self._index = PrefixIndex()

    def __len__(self) -> int:
        return len(self._open)

    def can_admit(self, num_tokens: int) -> bool:
        """Check that a new sequence fits without evicting an open one."""
        available = self._memory.kv_capacity - self._memory.kv_used + self._memory.kv_cached
        return len(self._open) < self._memory.max_sequences and num_tokens <= available

    def admit(self, num_tokens: int, make: Callable[[KvSlot], SequenceT]) -> SequenceT | None:
        """Make a sequence with room for `num_tokens`; return None if it cannot be admitted."""
        if not self.can_admit(num_tokens):
            return None
        while (slot := self._memory.allocate(num_tokens)) is None:
            self._drop_oldest()
        sequence = make(slot)
        self._open[slot] = sequence
        self._mark_used(slot)
        return sequence

    def release(self, sequence: EvictableSequence) -> None:
        """Release the slot of a closed sequence; does nothing if it was released before."""
        slot = sequence.slot
        if self._open.get(slot) is not sequence:
            return
        del self._open[slot]
        self._recently_used.pop(slot, None)
        if self._index.num_blocks(slot):
            self._cache(slot)
        else:
            self._free(slot)

    def drop_cached(self) -> None:
        """Free the memory of all closed sequences."""
        while self._cached:
            self._drop_oldest()

    def reserve(self, item: ForwardInput, protected: Set[KvSlot]) -> bool:
        """Reserve memory for `item`; evict unprotected open sequences if needed, the least recent first."""
        while not self._take(partial(self._memory.resize, item.slot, item.end, item.start)):
            victim = self.least_recently_used(protected)
            if victim is None:
                return False
            self.evict(victim)
        self._index.truncate(item.slot, item.start)
        self._mark_used(item.slot)
        return True

    def least_recently_used(self, protected: Set[KvSlot]) -> KvSlot | None:
        """Return the least recently used slot with memory, of an open sequence that is not protected."""
        return next((slot for slot in self._recently_used if slot not in protected), None)

    def evict(self, slot: KvSlot) -> None:
        """Evict an open sequence from memory and notify it."""
        self._memory.resize(slot, 0)
        self._index.forget(slot)
        del self._recently_used[slot]
        self._open[slot].evict()

    def num_published(self, slot: KvSlot) -> int:
        return self._index.num_blocks(slot)

    def publish(self, slot: KvSlot, keys: Sequence[BlockKey]) -> None:
        self._index.extend(slot, keys)

    def reuse(self, slot: KvSlot, keys: Sequence[BlockKey], computed_blocks: int) -> int:
        """Share the longest cached prefix, as `PrefixCache`; drop cached slots for it, but evict none."""
        match = self._index.match(keys, computed_blocks, slot)
        if match is None:
            return 0
        if match.slot in self._cached:
            self._cached.move_to_end(match.slot)
        copy = partial(self._memory.copy_prefix, match.slot, slot, match.num_blocks * BLOCK_TOKENS)
        if not self._take(copy, protected=match.slot):
            return 0
        self._index.truncate(slot, computed_blocks * BLOCK_TOKENS)
        self._mark_used(slot)
        return match.num_blocks

    def _take(self, take: Callable[[], bool], protected: KvSlot | None = None) -> bool:
        """Call `take` until it succeeds; after each failure drop the least recently used cached slot."""
        while not take():
            oldest = next(iter(self._cached), protected)
            if oldest is None or oldest == protected:
                return False
            self._drop(oldest)
        return True

    def _cache(self, slot: KvSlot) -> None:
        """Keep a closed sequence's published blocks, unless a cached slot has them; drop slots it covers."""
        if covering := self._index.covering(slot) & self._cached.keys():
            self._cached.move_to_end(min(covering))
            self._free(slot)
            return
        for other in [other for other in self._cached if slot in self._index.covering(other)]:
            self._drop(other)
        self._memory.retire(slot, self._index.num_blocks(slot) * BLOCK_TOKENS)
        self._cached[slot] = None

    def _mark_used(self, slot: KvSlot) -> None:
        self._recently_used[slot] = None
        self._recently_used.move_to_end(slot)

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._cached)))

    def _drop(self, slot: KvSlot) -> None:
        del self._cached[slot]
        self._free(slot)

    def _free(self, slot: KvSlot) -> None:
        self._index.forget(slot)
        self._memory.free(slot)
