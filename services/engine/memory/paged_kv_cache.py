"""KV cache in shared blocks: common prefixes are stored once, and rows are gathered by index for attention.

Used on a GPU, where memory is scarce and a gather is cheap; on a CPU contiguous memory is twice as fast. Its
gain and cost on a GPU have not been measured.
"""

import torch
from torch import Tensor

from fly.blocks import BLOCK_TOKENS
from services.engine.base import KvSlot
from services.engine.memory.block_allocator import Block, BlockAllocator


class PagedKvCache(BlockAllocator):
    """One tensor (positions, 2, heads, dim) per layer, in blocks that slots share; a `KvCache`.

    A layer's tensor is created at full size when the layer first writes, with the shape of the model's rows.
    """

    def __init__(self, kv_tokens: int, max_sequences: int, dtype: torch.dtype | None = None) -> None:
        super().__init__(kv_tokens, max_sequences, self._copy_block)
        self.dtype = dtype
        self._layers: dict[int, Tensor] = {}
        self._rows: dict[KvSlot, tuple[tuple[Block, ...], Tensor]] = {}

    def like(self, kv_tokens: int, max_sequences: int) -> "PagedKvCache":
        return PagedKvCache(kv_tokens, max_sequences, self.dtype)

    def free(self, slot: KvSlot) -> None:
        self._rows.pop(slot, None)
        super().free(slot)

    def store(
        self, layer: int, slot: KvSlot, start: int, keys: Tensor, values: Tensor
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

    def _rows_of(self, slot: KvSlot, device: torch.device) -> Tensor:
        """Return the rows of the slot's positions, (positions,), equal in every layer; cached per table."""
        table = self.table(slot)
        cached = self._rows.get(slot)
        if cached is not None and cached[0] is table:
            return cached[1]
        starts = torch.tensor(table, dtype=torch.long)[:, None] * BLOCK_TOKENS
        rows = (starts + torch.arange(BLOCK_TOKENS)).flatten().to(device)
        self._rows[slot] = (table, rows)
        return rows

    def _copy_block(self, source: Block, target: Block) -> None:
        for memory in self._layers.values():
            blocks = memory.view(-1, BLOCK_TOKENS, *memory.shape[1:])
            blocks[target].copy_(blocks[source])
