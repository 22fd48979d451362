"""The account of KV memory: who has reserved how many token positions."""

from services.engine.base import Slot

GRAIN = 64
"""Reservations are multiples of this many tokens."""


class KvLedger:
    """Reservations by slot within a budget; holds no memory itself.

    Attributes:
        kv_capacity: Token positions in all.
        kv_used: Token positions reserved.
    """

    def __init__(self, kv_tokens: int, max_sequences: int) -> None:
        self.kv_capacity = kv_tokens
        self.kv_used = 0
        self._reserved: dict[Slot, int] = {}
        self._free_slots = list(range(max_sequences - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._reserved)

    def reserved(self, slot: Slot) -> int:
        """Token positions that the slot may use."""
        return self._reserved[slot]

    def allocate(self, num_tokens: int) -> Slot | None:
        """A slot with room for `num_tokens`; None while memory or places are full."""
        if not self._free_slots:
            return None
        slot = self._free_slots[-1]
        self._reserved[slot] = 0
        if not self.resize(slot, num_tokens):
            del self._reserved[slot]
            return None
        return self._free_slots.pop()

    def resize(self, slot: Slot, num_tokens: int) -> bool:
        """Makes room for `num_tokens` in all; 0 gives all back.

        Growth is by half of what there is, so that a long response moves its memory seldom, but never keeps
        the last free positions from a request that they suffice for.
        """
        current = self._reserved[slot]
        if 0 < num_tokens <= current:
            return True
        available = self.kv_capacity - self.kv_used + current
        if num_tokens > available:
            return False
        wanted = _round_up(max(num_tokens, current + current // 2)) if num_tokens else 0
        if wanted > available:
            wanted = min(_round_up(num_tokens), available)
        self.kv_used += wanted - current
        self._reserved[slot] = wanted
        return True

    def free(self, slot: Slot) -> None:
        self.kv_used -= self._reserved.pop(slot)
        self._free_slots.append(slot)


def _round_up(num_tokens: int) -> int:
    return -(-num_tokens // GRAIN) * GRAIN
