"""The KV cache of all layers: an interface that hides its layout, and contiguous memory per sequence."""

from collections import defaultdict
from typing import Protocol

import torch
from torch import Tensor

from services.engine.base import KvAllocator, KvSlot
from services.engine.forward.padding import NO_PADDING, Padding
from services.engine.memory.slot_allocator import SlotAllocator


class KvCache(KvAllocator, Protocol):
    """KV memory of all layers, addressed by slot and position.

    Attributes:
        dtype: Type of the stored keys and values; None stores the type that the model produces.
        padding: Multiples that attention computes; `store` returns as many keys.
    """

    dtype: torch.dtype | None
    padding: Padding

    def like(self, kv_tokens: int, max_sequences: int) -> "KvCache":
        """Return an empty cache of the same kind."""

    def clear_after(self, slot: KvSlot, end: int) -> None:
        """Set what a slot stores after a position to 0; called before a forward that ends there.

        Attention reads it as padding: a masked position contributes 0 * value, which must not be NaN.
        """

    def store(self, layer: int, slot: KvSlot, start: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """Write new rows of a layer, (rows, 2, heads, dim), from position `start` of a slot on.

        Returns:
            Keys and values of the sequence up to and including them, (1, heads, start + rows, dim); with a
            padding, further ones follow.
        """


class ContiguousKvCache(SlotAllocator):
    """One tensor (positions, 2, heads, dim) per slot and layer: the best layout for a CPU.

    A tensor is created when a layer first writes, with the shape that the
    model produces, and is replaced by a longer one after the slot's reservation has grown.
    """

    def __init__(
        self,
        kv_tokens: int,
        max_sequences: int,
        dtype: torch.dtype | None = None,
        padding: Padding = NO_PADDING,
    ) -> None:
        super().__init__(kv_tokens, max_sequences)
        self.dtype = dtype
        self.padding = padding
        self._written: dict[KvSlot, int] = {}
        self._layers: defaultdict[KvSlot, dict[int, Tensor]] = defaultdict(dict)

    def like(self, kv_tokens: int, max_sequences: int) -> "ContiguousKvCache":
        return ContiguousKvCache(kv_tokens, max_sequences, self.dtype, self.padding)

    def whole(self, num_tokens: int) -> int:
        """As `SlotAllocator`, with the keys that attention reads beyond those of the sequence."""
        return self.padding.padded_keys(num_tokens)

    def resize(self, slot: KvSlot, num_tokens: int, start: int | None = None) -> bool:
        if num_tokens == 0:
            self._forget(slot)
        return super().resize(slot, num_tokens)

    def copy_prefix(self, source: KvSlot, slot: KvSlot, num_tokens: int) -> bool:
        if not self.resize(slot, num_tokens):
            return False
        for layer, rows in self._layers[source].items():
            _, _, heads, dim = rows.shape
            own = self.slot_tensor(layer, slot, heads, dim, rows)
            own[:num_tokens].copy_(rows[:num_tokens])
        self._written[slot] = max(num_tokens, self._written.get(slot, 0))
        return True

    def free(self, slot: KvSlot) -> None:
        self._forget(slot)
        super().free(slot)

    def clear_after(self, slot: KvSlot, end: int) -> None:
        for memory in self._layers[slot].values() if self._written.get(slot, 0) > end else ():
            memory[end : self._written[slot]].zero_()
        self._written[slot] = end

    def store(self, layer: int, slot: KvSlot, start: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """As `KvCache`: keys and values are views of the memory."""
        num_rows, _, heads, dim = new.shape
        memory = self.slot_tensor(layer, slot, heads, dim, new)
        end = start + num_rows
        memory[start:end].copy_(new)
        whole = memory[: self.padding.padded_keys(end)].permute(1, 2, 0, 3)
        return whole[:1], whole[1:]

    def slot_tensor(self, layer: int, slot: KvSlot, heads: int, dim: int, like: Tensor) -> Tensor:
        """Return the tensor of a slot and layer, long enough for the slot's reservation.

        The reservation of a slot that has all memory to itself may be cut: it is padded here.
        """
        layers = self._layers[slot]
        num_positions = self.padding.padded_keys(self.reserved(slot))
        old = layers.get(layer)
        if old is not None and len(old) >= num_positions:
            return old
        # NOTE: zeros, not empty: a masked position still contributes 0 * value, which must not be NaN.
        new = torch.zeros(num_positions, 2, heads, dim, dtype=self.dtype or like.dtype, device=like.device)
        if old is not None:
            new[: len(old)].copy_(old)
        layers[layer] = new
        return new

    def _forget(self, slot: KvSlot) -> None:
        self._layers.pop(slot, None)
        self._written.pop(slot, None)
