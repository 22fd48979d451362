"""KV memory in shared blocks: equal beginnings are held once, and gathered by index for attention.

The memory for a GPU, where room is scarce and a gather is cheap beside it; on a CPU contiguous memory is
twice as fast. What it gains and costs on a GPU has not been measured.
"""

import torch
from torch import Tensor

from fly.blocks import BLOCK_TOKENS
from services.engine.base import Slot
from services.engine.memory.block_ledger import Block, BlockLedger
from services.engine.memory.figures import MemoryFigures


class PagedArena(MemoryFigures):
    """One tensor (positions, 2, heads, dim) per layer, in blocks that slots share; a `KvArena`.

    A layer's tensor is made in its full size when it first writes, with the shape that the model produces.
    """

    def __init__(self, kv_tokens: int, max_sequences: int, dtype: torch.dtype | None = None) -> None:
        self.dtype = dtype
        self._ledger = BlockLedger(kv_tokens, max_sequences, self._copy_block)
        super().__init__(self._ledger)
        self._layers: dict[int, Tensor] = {}
        self._rows: dict[Slot, tuple[tuple[Block, ...], Tensor]] = {}

    def like(self, kv_tokens: int, max_sequences: int) -> "PagedArena":
        return PagedArena(kv_tokens, max_sequences, self.dtype)

    def allocate(self, num_tokens: int) -> Slot | None:
        return self._ledger.allocate(num_tokens)

    def resize(self, slot: Slot, num_tokens: int, start: int | None = None) -> bool:
        return self._ledger.resize(slot, num_tokens, start)

    def copy_prefix(self, source: Slot, slot: Slot, num_tokens: int) -> bool:
        return self._ledger.share(source, slot, num_tokens)

    def retire(self, slot: Slot, num_tokens: int) -> None:
        self._ledger.retire(slot, num_tokens)

    def free(self, slot: Slot) -> None:
        self._rows.pop(slot, None)
        self._ledger.free(slot)

    def store(
        self, layer: int, slot: Slot, start: int, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        heads, num_rows, dim = keys.shape
        memory = self._memory(layer, heads, dim, keys)
        rows = self._rows_of(slot, keys.device)
        end = start + num_rows
        new = torch.stack((keys.transpose(0, 1), values.transpose(0, 1)), 1).to(memory.dtype)
        memory.index_copy_(0, rows[start:end], new)
        whole = memory.index_select(0, rows[:end]).permute(1, 2, 0, 3)
        return whole[:1], whole[1:]

    def _memory(self, layer: int, heads: int, dim: int, like: Tensor) -> Tensor:
        if layer not in self._layers:
            size = (self.kv_capacity, 2, heads, dim)
            self._layers[layer] = torch.zeros(size, dtype=self.dtype or like.dtype, device=like.device)
        return self._layers[layer]

    def _rows_of(self, slot: Slot, device: torch.device) -> Tensor:
        """Where the slot's positions lie, (room,), in every layer; made again when its blocks change."""
        table = self._ledger.table(slot)
        known = self._rows.get(slot)
        if known is not None and known[0] is table:
            return known[1]
        starts = torch.tensor(table, dtype=torch.long)[:, None] * BLOCK_TOKENS
        rows = (starts + torch.arange(BLOCK_TOKENS)).flatten().to(device)
        self._rows[slot] = (table, rows)
        return rows

    def _copy_block(self, source: Block, target: Block) -> None:
        for memory in self._layers.values():
            blocks = memory.view(-1, BLOCK_TOKENS, *memory.shape[1:])
            blocks[target].copy_(blocks[source])
