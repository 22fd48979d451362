"""The account of contiguous KV memory: who has reserved how many token positions."""

from services.engine.base import Slot

GRAIN = 64
"""Reservations are multiples of this many tokens."""


class KvLedger:
    """Reservations by slot within a budget; holds no memory itself.

    Attributes:
        max_sequences: Slots that may be held by open sequences at once; those of closed ones do not count.
        kv_capacity: Token positions in all.
        kv_used: Token positions reserved.
        kv_cached: Those of them whose sequences are closed.
    """

    def __init__(self, kv_tokens: int, max_sequences: int) -> None:
        self.max_sequences = max_sequences
        self.kv_capacity = kv_tokens
        self.kv_used = 0
        self.kv_cached = 0
        self._reserved: dict[Slot, int] = {}
        self._retired: set[Slot] = set()
        self._free_slots: list[Slot] = []

    def __len__(self) -> int:
        return len(self._reserved)

    def reserved(self, slot: Slot) -> int:
        """Token positions that the slot may use."""
        return self._reserved[slot]

    def allocate(self, num_tokens: int) -> Slot | None:
        """A slot with room for `num_tokens`; None while memory or places are full."""
        if len(self._reserved) - len(self._retired) >= self.max_sequences:
            return None
        slot = self._free_slots.pop() if self._free_slots else len(self._reserved)
        self._reserved[slot] = 0
        if self.resize(slot, num_tokens):
            return slot
        self.free(slot)
        return None

    def resize(self, slot: Slot, num_tokens: int) -> bool:
        """Makes room for `num_tokens` in all; 0 gives all back.

        Growth is by half of what there is, so that a long response moves its memory seldom, but no more than
        is needed once less than a quarter of all would stay free.
        """
        current = self._reserved[slot]
        if 0 < num_tokens <= current:
            return True
        available = self.kv_capacity - self.kv_used + current
        if num_tokens > available:
            return False
        wanted = _round_up(max(num_tokens, current + current // 2)) if num_tokens else 0
        if wanted > available - self.kv_capacity // 4:
            wanted = min(_round_up(num_tokens), available)
        self.kv_used += wanted - current
        self._reserved[slot] = wanted
        return True

    def retire(self, slot: Slot) -> None:
        """The slot's sequence is closed; what it has reserved counts as cached until it is freed."""
        self._retired.add(slot)
        self.kv_cached += self._reserved[slot]

    def free(self, slot: Slot) -> None:
        room = self._reserved.pop(slot)
        self.kv_used -= room
        if slot in self._retired:
            self._retired.remove(slot)
            self.kv_cached -= room
        self._free_slots.append(slot)


def _round_up(num_tokens: int) -> int:
    return -(-num_tokens // GRAIN) * GRAIN
