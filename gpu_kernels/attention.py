"""Attention of a whole batch by one launch of a kernel that reads the blocks of KV memory where they are."""

import numpy as np
import torch
from torch import Tensor

from fly.blocks import BLOCK_TOKENS
from gpu_kernels.checks import AttentionKind, checked_paged_attention
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.memory.kv_cache import KvCache
from services.engine.memory.paged_kv_cache import PagedKvCache


class KernelAttention:
    """An `Attention` of one forward over paged memory; describes the batch to the kernel once."""

    def __init__(self, batch: ForwardBatch, kv_cache: KvCache) -> None:
        """Upload the blocks, contexts and rows of the sequences."""
        assert isinstance(kv_cache, PagedKvCache), "the kernel reads memory in blocks"
        self._batch, self._kv_cache = batch, kv_cache
        tables = [np.array(kv_cache.table(rows.slot), dtype=np.int64) for rows in batch.rows]
        most_blocks = max(map(len, tables))
        self._tables = self._upload([np.pad(table, (0, most_blocks - len(table))) for table in tables])
        self._contexts = self._upload([rows.start for rows in batch.rows])
        self._starts = self._upload([*(rows.offset for rows in batch.rows), batch.num_tokens])
        positions = [np.arange(rows.start, rows.end) for rows in batch.rows]
        written = [
            table[own // BLOCK_TOKENS] * BLOCK_TOKENS + own % BLOCK_TOKENS
            for table, own in zip(tables, positions, strict=True)
        ]
        self._written = torch.from_numpy(np.concatenate(written)).to(batch.ids.device)

    def __call__(
        self,
        layer: int,
        queries: Tensor,
        new: Tensor,
        scaling: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """As `Attention` in `services.engine.forward.attention`."""
        memory = self._kv_cache.layer(layer, new)
        queries, new = queries.to(memory.dtype), new.to(memory.dtype)
        memory.index_copy_(0, self._written, new)
        self._batch.windows.add(window)
        heads, dim = queries.shape[1:]
        kind = AttentionKind(heads, memory.shape[2], dim, window is not None, softcap, sinks is not None)
        kernel = checked_paged_attention(memory.device, memory.dtype, kind)
        scale = dim**-0.5 if scaling is None else scaling
        keys, values = memory.unbind(1)
        places = self._tables, self._contexts, self._starts
        return kernel(queries, keys, values, *places, scale, window=window, softcap=softcap, sinks=sinks)

    def _upload(self, numbers: object) -> Tensor:
        return torch.from_numpy(np.array(numbers, dtype=np.int32)).to(self._batch.ids.device)
