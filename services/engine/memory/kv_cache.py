"""The KV cache of all layers: an interface that hides its layout, and contiguous memory per sequence."""

from typing import Protocol

import torch
from torch import Tensor

from services.engine.base import KvAllocator, KvSlot
from services.engine.memory.memory_stats import DelegatedMemoryStats
from services.engine.memory.slot_allocator import SlotAllocator


class KvCache(KvAllocator, Protocol):
    """KV memory of all layers, addressed by slot and position.

    Attributes:
        dtype: Type of the stored keys and values; None stores the type that the model produces.
    """

    dtype: torch.dtype | None

    def like(self, kv_tokens: int, max_sequences: int) -> "KvCache":
        """Return an empty cache of the same kind."""

    def store(
        self, layer: int, slot: KvSlot, start: int, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write new rows of shape (heads, rows, dim) from position `start` on.

        Returns:
            Keys and values of the sequence up to and including them, (1, heads, start + rows, dim).
        """


class ContiguousKvCache(DelegatedMemoryStats):
    """One tensor (positions, 2, heads, dim) per slot and layer: the best layout for a CPU.

    The allocator limits the memory. A tensor is created when a layer first writes, with the shape that the
    model produces, and is replaced by a longer one after the slot's reservation has grown.
    """

    def __init__(self, kv_tokens: int, max_sequences: int, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype
        self._allocator = SlotAllocator(kv_tokens, max_sequences)
        super().__init__(self._allocator)
        self._layers: dict[KvSlot, dict[int, Tensor]] = {}

    def like(self, kv_tokens: int, max_sequences: int) -> "ContiguousKvCache":
        return ContiguousKvCache(kv_tokens, max_sequences, self.dtype)

    def allocate(self, num_tokens: int) -> KvSlot | None:
        slot = self._allocator.allocate(num_tokens)
        if slot is not None:
            self._layers[slot] = {}
        return slot

    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        if num_tokens == 0:
            self._layers[slot] = {}
        return self._allocator.resize(slot, num_tokens)

    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        if not self._allocator.resize(slot, num_tokens):
            return False
        for layer, rows in self._layers[source].items():
            _, _, heads, dim = rows.shape
            self.slot_tensor(layer, slot, heads, dim, rows)[:num_tokens].copy_(rows[:num_tokens])
        return True

    def retire(self, slot: KvSlot, num_tokens: int) -> None:
        self._allocator.retire(slot)

    def free(self, slot: KvSlot) -> None:
        del self._layers[slot]
        self._allocator.free(slot)

    def store(
        self, layer: int, slot: KvSlot, start: int, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        heads, rows, dim = keys.shape
        memory = self.slot_tensor(layer, slot, heads, dim, keys)
        end = start + rows
        memory[start:end, 0].copy_(keys.transpose(0, 1))
        memory[start:end, 1].copy_(values.transpose(0, 1))
        whole = memory[:end].permute(1, 2, 0, 3)
        return whole[:1], whole[1:]

    def slot_tensor(self, layer: int, slot: KvSlot, heads: int, dim: int, like: Tensor) -> Tensor:
        """Return the tensor of a slot and layer, long enough for the slot's reservation."""
        layers = self._layers[slot]
        num_positions = self._allocator.reserved(slot)
        old = layers.get(layer)
        if old is not None and len(old) >= num_positions:
            return old
        # NOTE: zeros, not empty: a masked position still contributes 0 * value, which must not be NaN.
        new = torch.zeros(num_positions, 2, heads, dim, dtype=self.dtype or like.dtype, device=like.device)
        if old is not None:
            new[: len(old)].copy_(old)
        layers[layer] = new
        return new
