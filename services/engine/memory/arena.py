"""KV memory: an interface that hides how it is laid out, and contiguous memory per sequence."""

from typing import Protocol

import torch
from torch import Tensor

from services.engine.base import Memory, Slot
from services.engine.memory.figures import MemoryFigures
from services.engine.memory.ledger import KvLedger


class KvArena(Memory, Protocol):
    """KV memory of all layers, addressed by slot and position.

    Attributes:
        dtype: Of what is stored and attended over; None stores what the model produces.
    """

    dtype: torch.dtype | None

    def like(self, kv_tokens: int, max_sequences: int) -> "KvArena":
        """An empty arena of the same kind."""

    def store(
        self, layer: int, slot: Slot, start: int, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Writes new rows of shape (heads, rows, dim) behind `start` positions.

        Returns:
            Keys and values of the whole sequence up to and with them, (1, heads, start + rows, dim).
        """


class ContiguousArena(MemoryFigures):
    """One tensor (room, 2, heads, dim) per slot and layer: the best layout for a CPU.

    Memory is bound by the ledger's budget; a tensor is made when a layer first writes, with the shape that
    the model really produces, and is replaced by a longer one when the slot's room has grown.
    """

    def __init__(self, kv_tokens: int, max_sequences: int, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype
        self._ledger = KvLedger(kv_tokens, max_sequences)
        super().__init__(self._ledger)
        self._layers: dict[Slot, dict[int, Tensor]] = {}

    def like(self, kv_tokens: int, max_sequences: int) -> "ContiguousArena":
        return ContiguousArena(kv_tokens, max_sequences, self.dtype)

    def allocate(self, num_tokens: int) -> Slot | None:
        slot = self._ledger.allocate(num_tokens)
        if slot is not None:
            self._layers[slot] = {}
        return slot

    def resize(self, slot: Slot, num_tokens: int, start: int | None = None) -> bool:
        if num_tokens == 0:
            self._layers[slot] = {}
        return self._ledger.resize(slot, num_tokens)

    def copy_prefix(self, source: Slot, slot: Slot, num_tokens: int) -> bool:
        if not self._ledger.resize(slot, num_tokens):
            return False
        for layer, rows in self._layers[source].items():
            _, _, heads, dim = rows.shape
            self.memory(layer, slot, heads, dim, rows)[:num_tokens].copy_(rows[:num_tokens])
        return True

    def retire(self, slot: Slot, num_tokens: int) -> None:
        self._ledger.retire(slot)

    def free(self, slot: Slot) -> None:
        del self._layers[slot]
        self._ledger.free(slot)

    def store(
        self, layer: int, slot: Slot, start: int, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        heads, rows, dim = keys.shape
        memory = self.memory(layer, slot, heads, dim, keys)
        end = start + rows
        memory[start:end, 0].copy_(keys.transpose(0, 1))
        memory[start:end, 1].copy_(values.transpose(0, 1))
        whole = memory[:end].permute(1, 2, 0, 3)
        return whole[:1], whole[1:]

    def memory(self, layer: int, slot: Slot, heads: int, dim: int, like: Tensor) -> Tensor:
        """The tensor of a slot and layer, long enough for the slot's room."""
        layers = self._layers[slot]
        room = self._ledger.reserved(slot)
        old = layers.get(layer)
        if old is not None and len(old) >= room:
            return old
        # NOTE: zeros, not empty: a masked position still enters 0 * value, which must not be NaN.
        new = torch.zeros(room, 2, heads, dim, dtype=self.dtype or like.dtype, device=like.device)
        if old is not None:
            new[: len(old)].copy_(old)
        layers[layer] = new
        return new
