"""Assign KV memory to sequences, take it back when it is full, and keep prefixes of closed ones as cache."""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial

from flyserve.core.blocks import BLOCK_TOKENS, BlockKey
from services.engine.base import NO_SLOT, ForwardInput, KvAllocator, KvSlot
from services.engine.memory.prefix_cache import PrefixCache, PrefixIndex
from services.engine.sequence import EngineSequence

_COPIED_TOKENS = 4096
"""Positions after whose copy no other prefix is copied before a forward: 1 GB of an 8B model in float32."""


class KvCacheManager(PrefixCache):
    """Open sequences, with or without memory, and cached prefixes in order of their last use.

    A closed sequence leaves its slot behind as cache, with the blocks that it has published. Cached slots do
    not count as sequences, and are dropped first when any sequence needs memory.

    Attributes:
        num_admitted: Number of open sequences that have memory.
    """

    def __init__(self, memory: KvAllocator) -> None:
        self._memory = memory
        self._open: dict[KvSlot, EngineSequence] = {}
        self.num_admitted = 0
        self._numbers = itertools.count()
        self._cached: OrderedDict[KvSlot, None] = OrderedDict()
        self._index = PrefixIndex()
        self._num_copied = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def has_place(self) -> bool:
        """True if there are fewer open sequences than `max_sequences`."""
        return len(self._open) < self._memory.max_sequences

    @property
    def num_used(self) -> int:
        """Token positions that open sequences use."""
        return self._memory.kv_used - self._memory.kv_cached

    def reserved(self, slot: KvSlot) -> int:
        """Return the token positions that an open sequence has reserved."""
        return self._memory.reserved(slot)

    def whole(self, num_tokens: int) -> int:
        """Return the token positions that a sequence of this length reserves."""
        return self._memory.whole(num_tokens)

    def sequence(self, slot: KvSlot) -> EngineSequence:
        """Return the open sequence of a slot."""
        return self._open[slot]

    def admitted(self) -> Collection[EngineSequence]:
        """Return the open sequences that have memory."""
        return [sequence for sequence in self._open.values() if sequence.admission is not None]

    def has_memory(self, slot: KvSlot) -> bool:
        """Return False if the memory of an open sequence was taken from it."""
        return self._open[slot].admission is not None

    def admit(self, sequence: EngineSequence, num_tokens: int) -> bool:
        """Give a sequence a place, if it has none, and memory; return False if there is not enough."""
        if sequence.slot == NO_SLOT:
            if not self.has_place or num_tokens > self._memory.kv_capacity - self.num_used:
                return False
            while (slot := self._memory.allocate(self._first_part(num_tokens))) is None:
                if not self._cached:
                    return False
                self._drop(next(iter(self._cached)))
            sequence.slot, self._open[slot] = slot, sequence
        elif not self._take(partial(self._memory.resize, sequence.slot, self._first_part(num_tokens))):
            return False
        sequence.admission = next(self._numbers)
        self.num_admitted += 1
        return True

    def _first_part(self, num_tokens: int) -> int:
        """Return the positions of a sequence's length that it gets before it looks for its prefix.

        Where sharing takes no memory, these drop no more of the cache than a first block needs: the prefix
        may be there. `reserve` takes the rest.
        """
        if not self._memory.shares_prefixes:
            return num_tokens
        free = self._memory.kv_capacity - self._memory.kv_used
        return min(num_tokens, max(BLOCK_TOKENS, free // BLOCK_TOKENS * BLOCK_TOKENS))

    def release(self, sequence: EngineSequence) -> bool:
        """Release the slot of a closed sequence; return False if it was released before.

        NOTE: the sequence has no slot from then on: another one may get it.
        """
        slot = sequence.slot
        if self._open.get(slot) is not sequence:
            return False
        del self._open[slot]
        self._withdraw(sequence)
        if self._index.num_blocks(slot):
            self._cache(slot)
        else:
            self._free(slot)
        sequence.slot = NO_SLOT
        return True

    def drop_cached(self) -> None:
        """Free the memory of all closed sequences."""
        while self._cached:
            self._drop(next(iter(self._cached)))

    def reserve(self, item: ForwardInput) -> bool:
        """Reserve memory for `item`; return False if memory is full."""
        if not self._take(partial(self._memory.resize, item.slot, item.end, item.start)):
            return False
        self._index.truncate(item.slot, item.start)
        return True

    def next_victim(self) -> EngineSequence:
        """Return the sequence to preempt: of those of the lowest priority, the one admitted last."""
        return min(self.admitted(), key=lambda sequence: (sequence.priority, -(sequence.admission or 0)))

    def preempt(self, sequence: EngineSequence) -> None:
        """Take the memory of an open sequence; it keeps its slot."""
        self._memory.resize(sequence.slot, 0)
        self._index.forget(sequence.slot)
        self._withdraw(sequence)
        sequence.forget_kv()

    def num_reusable(self, item: ForwardInput) -> int:
        """Return how many blocks of an input, from the front, other slots hold."""
        return self._index.num_held(item.blocks, item.slot)

    @property
    def may_copy(self) -> bool:
        """False if `reuse` has to wait for `allow_copies`, because what it copied takes long already."""
        return self._num_copied < _COPIED_TOKENS

    def allow_copies(self) -> None:
        """Let prefixes be copied again; called for each forward."""
        self._num_copied = 0

    def num_published(self, slot: KvSlot) -> int:
        return self._index.num_blocks(slot)

    def publish(self, slot: KvSlot, keys: Sequence[BlockKey]) -> None:
        self._index.extend(slot, keys)

    def reuse(self, slot: KvSlot, keys: Sequence[BlockKey], computed_blocks: int) -> int:
        """Share the longest cached prefix, as `PrefixCache`; drop cached slots for it, but preempt none.

        A cached slot becomes the newest by it, unless most of it is shared: then this slot takes its place.
        """
        may_reuse = self.may_copy and self.has_memory(slot)
        match = self._index.match(keys, computed_blocks, slot) if may_reuse else None
        if match is None:
            return 0
        if match.slot in self._cached and 2 * match.num_blocks < self._index.num_blocks(match.slot):
            self._cached.move_to_end(match.slot)
        copy = partial(self._memory.copy_prefix, match.slot, slot, match.num_blocks * BLOCK_TOKENS)
        if not self._take(copy, protected=match.slot):
            return 0
        if not self._memory.shares_prefixes:
            self._num_copied += match.num_blocks * BLOCK_TOKENS
        self._index.truncate(slot, computed_blocks * BLOCK_TOKENS)
        self._index.extend(slot, keys[: match.num_blocks])  # it may close before its first forward
        return match.num_blocks

    def _withdraw(self, sequence: EngineSequence) -> None:
        """Record that a sequence has no memory any more."""
        self.num_admitted -= sequence.admission is not None
        sequence.admission = None

    def _take(self, take: Callable[[], bool], protected: KvSlot | None = None) -> bool:
        """Call `take` until it succeeds; after each failure drop the oldest cached slot but `protected`."""
        while not take():
            oldest = next((slot for slot in self._cached if slot != protected), None)
            if oldest is None:
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

    def _drop(self, slot: KvSlot) -> None:
        del self._cached[slot]
        self._free(slot)

    def _free(self, slot: KvSlot) -> None:
        self._index.forget(slot)
        self._memory.free(slot)
