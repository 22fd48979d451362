"""Attention of the sequences of a batch, each to itself only."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from services.engine.forward.attend import attend, attend_eager
from services.engine.forward.forward_batch import Cap, ForwardBatch
from services.engine.memory.kv_cache import KvCache


class Attention(Protocol):
    """Attention of one forward over KV memory."""

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
        """Write a layer's new keys and values, then attend.

        Args:
            layer: Index of the layer.
            queries: (rows, heads, dim).
            new: Keys and values of the rows, (rows, 2, KV heads, dim).
            scaling: Factor of the attention scores; 1 / sqrt(dim) by default.
            window: Positions that a row attends to, including itself.
            softcap: Soft cap of the attention scores (Gemma 2).
            sinks: Attention sinks per head (GPT-OSS).

        Returns:
            (rows, heads, dim).
        """


class SequentialAttention:
    """Attention over any memory by torch, one sequence after another: the fastest on a CPU."""

    def __init__(self, batch: ForwardBatch, kv_cache: KvCache) -> None:
        self._batch = batch
        self._kv_cache = kv_cache
        for rows in batch.rows:
            kv_cache.clear_after(rows.slot, rows.end)

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
        """As `Attention`."""
        num_rows, queries = len(queries), queries.to(self._kv_cache.dtype or queries.dtype)
        is_eager, padding = softcap is not None or sinks is not None, self._kv_cache.padding
        self._batch.caps.add(Cap(softcap, sinks is not None))
        masks = self._batch.masks(window, queries.dtype, is_dense=is_eager, padding=padding)
        if padding.rows > 1:
            queries = F.pad(queries, (0, 0, 0, 0, 0, padding.rows - 1))
        by_head = queries.transpose(0, 1)[None]
        parts = []
        for rows, mask in zip(self._batch.rows, masks, strict=True):
            span = slice(rows.offset, rows.offset + rows.num_rows)
            keys, values = self._kv_cache.store(layer, rows.slot, rows.start, new[span])
            own = by_head[:, :, rows.offset : rows.offset + padding.padded_rows(rows.num_rows)]
            if is_eager:
                found = attend_eager(own, keys, values, mask, scaling, softcap, sinks, padding.rows)
            else:
                found = attend(own, keys, values, mask, scaling)
            parts.append(found[:, :, : rows.num_rows])
        if missing := num_rows - self._batch.num_tokens:
            parts.append(by_head.new_zeros(1, by_head.shape[1], missing, parts[0].shape[3]))
        attended = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        return attended[0].transpose(0, 1)
