"""Allocator of contiguous KV memory: reserve token positions per slot; pure."""

from services.engine.base import KvSlot

GRAIN = 64
"""Reservations are multiples of this many tokens."""
_MOST_SPARE = 4 * GRAIN
"""Most tokens by which a reservation grows beyond what is needed."""


class SlotAllocator:
    """Reservations per slot within a budget; holds no memory itself."""

    shares_prefixes = False

    def __init__(self, kv_tokens: int, max_sequences: int) -> None:
        self.max_sequences = max_sequences
        self.kv_capacity = kv_tokens
        self.kv_used = 0
        self.kv_cached = 0
        self._reserved: dict[KvSlot, int] = {}
        self._retired: set[KvSlot] = set()
        self._free_slots: list[KvSlot] = []

    def __len__(self) -> int:
        return len(self._reserved)

    def reserved(self, slot: KvSlot) -> int:
        """Return the token positions that the slot may use."""
        return self._reserved[slot]

    def allocate(self, num_tokens: int) -> KvSlot | None:
        """Return a slot with room for `num_tokens`, or None if memory or `max_sequences` is exhausted."""
        if len(self._reserved) - len(self._retired) >= self.max_sequences:
            return None
        slot = self._free_slots.pop() if self._free_slots else len(self._reserved)
        self._reserved[slot] = 0
        if self.resize(slot, num_tokens):
            return slot
        self.free(slot)
        return None

    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        """Make room for `num_tokens` in total; 0 frees all. Return False if memory is full.

        A reservation grows by half, at most by `_MOST_SPARE`, so that a long response is rarely moved. It
        grows only as far as needed if less than a quarter of all memory would stay free. One that has all
        memory to itself may be cut.
        """
        current = self._reserved[slot]
        if 0 < num_tokens <= current:
            return True
        available = self.kv_capacity - self.kv_used + current
        wanted = self._wanted(num_tokens, current, available) if num_tokens else 0
        if num_tokens > available or wanted is None:
            return False
        self.kv_used += wanted - current
        self._reserved[slot] = wanted
        return True

    def whole(self, num_tokens: int) -> int:
        """Return the smallest reservation for this many tokens."""
        return num_tokens

    def _wanted(self, num_tokens: int, current: int, available: int) -> int | None:
        """Return the new size of a reservation; None if none fits."""
        generous = self.whole(_round_up(max(num_tokens, current + min(current // 2, _MOST_SPARE))))
        if generous <= available - self.kv_capacity // 4:
            return generous
        sizes = map(self.whole, (_round_up(num_tokens), available, num_tokens))
        alone = available if available == self.kv_capacity else None
        return next((size for size in sizes if size <= available), alone)

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        """Mark the slot's sequence as closed; its whole reservation counts as cached until `free`."""
        self._retired.add(slot)
        self.kv_cached += self._reserved[slot]

    def free(self, slot: KvSlot) -> None:
        num_tokens = self._reserved.pop(slot)
        self.kv_used -= num_tokens
        if slot in self._retired:
            self._retired.remove(slot)
            self.kv_cached -= num_tokens
        self._free_slots.append(slot)


def _round_up(num_tokens: int) -> int:
    return -(-num_tokens // GRAIN) * GRAIN
