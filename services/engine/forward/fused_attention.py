"""Attention of the fused forward: rotary embedding, KV write, SDPA; on strided views where possible."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from services.engine.forward.forward_batch import ForwardBatch, SequenceRows
from services.engine.memory.kv_cache import ContiguousKvCache, KvCache


class AttentionShape(NamedTuple):
    """Number of query heads, number of KV heads, and their dimension."""

    heads: int
    kv_heads: int
    dim: int


class Rotary(NamedTuple):
    """Rotary embedding by position.

    Attributes:
        cos: (context, 1, dim).
        sin: (context, 1, dim), with the signs of `rotate_half`.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def make(cls, cos: Tensor, sin: Tensor) -> "Rotary":
        """Convert a model's own tables, (context, dim)."""
        first, second = sin.chunk(2, -1)
        return cls(cos[:, None], torch.cat((-first, second), -1)[:, None])


class _Views(NamedTuple):
    """Strides of one sequence's views into the projection and its KV memory, equal for every layer."""

    rows: SequenceRows
    mask: Tensor | None
    is_causal: bool
    is_grouped: bool
    kv_start: int
    query_size: tuple[int, ...]
    query_stride: tuple[int, ...]
    query_offset: int
    kv_size: tuple[int, ...]
    cache_size: tuple[int, ...]


class FusedAttention:
    """Attention of one forward; builds once what all layers share.

    A row of the projection holds queries, keys, values, in this order.
    """

    def __init__(
        self,
        batch: ForwardBatch,
        kv_cache: KvCache,
        shape: AttentionShape,
        rotary: Rotary,
        dtype: torch.dtype,
    ) -> None:
        heads, kv_heads, dim = shape
        self._shape = shape
        self._kv_cache = kv_cache
        self._write = self._write_views if isinstance(kv_cache, ContiguousKvCache) else self._write_rows
        self._dtype = dtype
        self._scale = dim**-0.5
        self._width = (heads + 2 * kv_heads) * dim
        self._rotated_size = (batch.num_tokens, heads + kv_heads, dim)
        self._rotated_stride = (self._width, dim, 1)
        self._cos = rotary.cos.index_select(0, batch.positions)
        self._sin = rotary.sin.index_select(0, batch.positions)
        self._views = [self._view(*pair) for pair in zip(batch.rows, batch.masks(None, dtype), strict=True)]

    def __call__(self, layer: int, projected: Tensor) -> Tensor:
        """Return the output of attention, (rows, heads * dim), from the contiguous projection."""
        dtype = projected.dtype
        if dtype is not self._dtype:
            projected = projected.to(self._dtype)
        rotated = projected.as_strided(self._rotated_size, self._rotated_stride)
        halves_exchanged = rotated.roll(self._shape.dim // 2, -1)
        rotated.mul_(self._cos).addcmul_(halves_exchanged, self._sin)
        parts = [self._attend(layer, projected, views) for views in self._views]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended if dtype is self._dtype else attended.to(dtype)

    def _attend(self, layer: int, projected: Tensor, views: _Views) -> Tensor:
        """Write the KV of one sequence, then attend over all of it."""
        rows = views.rows
        heads, _, dim = self._shape
        keys, values = self._write(layer, projected, views)
        attended = F.scaled_dot_product_attention(
            projected.as_strided(views.query_size, views.query_stride, views.query_offset),
            keys,
            values,
            attn_mask=views.mask,
            is_causal=views.is_causal,
            scale=self._scale,
            enable_gqa=views.is_grouped,
        )
        if rows.num_rows > 1:
            attended = attended.transpose(1, 2)
        return attended.reshape(rows.num_rows, heads * dim)

    def _write_views(self, layer: int, projected: Tensor, views: _Views) -> tuple[Tensor, Tensor]:
        """Write to contiguous memory; return all keys and values as views of it, (1, KV heads, end, dim)."""
        assert isinstance(self._kv_cache, ContiguousKvCache)
        _, kv_heads, dim = self._shape
        memory = self._kv_cache.slot_tensor(layer, views.rows.slot, kv_heads, dim, projected)
        step = 2 * kv_heads * dim
        new = projected.as_strided(views.kv_size, (self._width, 1), views.kv_start)
        memory.as_strided(views.kv_size, (step, 1), views.rows.start * step).copy_(new)
        stride = (step, dim, step, 1)
        keys = memory.as_strided(views.cache_size, stride, 0)
        return keys, memory.as_strided(views.cache_size, stride, kv_heads * dim)

    def _write_rows(self, layer: int, projected: Tensor, views: _Views) -> tuple[Tensor, Tensor]:
        """Write to any KV cache; return all keys and values, (1, KV heads, end, dim)."""
        _, kv_heads, dim = self._shape
        size = (2, kv_heads, views.rows.num_rows, dim)
        stride = (kv_heads * dim, dim, self._width, 1)
        keys, values = projected.as_strided(size, stride, views.kv_start)
        return self._kv_cache.store(layer, views.rows.slot, views.rows.start, keys, values)

    def _view(self, rows: SequenceRows, mask: Tensor | None) -> _Views:
        heads, kv_heads, dim = self._shape
        offset = rows.offset * self._width
        if rows.num_rows == 1:  # queries that share a KV head become rows of one product
            group = heads // kv_heads
            size: tuple[int, ...] = (1, kv_heads, group, dim)
            stride: tuple[int, ...] = (self._width, group * dim, dim, 1)
        else:
            size, stride = (1, heads, rows.num_rows, dim), (self._width, dim, self._width, 1)
        return _Views(
            rows=rows,
            mask=mask,
            is_causal=mask is None and rows.num_rows > 1,
            is_grouped=size[1] != kv_heads,
            kv_start=offset + heads * dim,
            query_size=size,
            query_stride=stride,
            query_offset=offset,
            kv_size=(rows.num_rows, 2 * kv_heads * dim),
            cache_size=(1, kv_heads, rows.end, dim),
        )
