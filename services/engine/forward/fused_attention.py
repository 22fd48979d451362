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
    """Rotary embedding by position; dimension 2 separates the halves of a head.

    Attributes:
        cos: (context, 1, 2, dim / 2).
        sin: (context, 1, 2, dim / 2), with the signs of `rotate_half`.
    """

    cos: Tensor
    sin: Tensor

    @classmethod
    def make(cls, cos: Tensor, sin: Tensor) -> "Rotary":
        """Convert a model's own tables, (context, dim)."""
        shape = (len(cos), 1, 2, cos.shape[-1] // 2)
        first, second = sin.chunk(2, -1)
        return cls(cos.reshape(shape), torch.cat((-first, second), -1).reshape(shape))


_FEW_ROWS = 64
"""Up to this number of rows, copying a projection takes less time than making views of it."""


class _Layout(NamedTuple):
    """Sizes and strides of one sequence's views, equal for every layer."""

    rows: SequenceRows
    mask: Tensor | None
    is_causal: bool
    is_grouped: bool
    query_size: tuple[int, ...]
    query_stride: tuple[int, ...]
    query_offset: int
    new_size: tuple[int, ...]
    new_stride: tuple[int, ...]
    new_offset: int
    cache_size: tuple[int, ...]


class _Views(NamedTuple):
    """Views of a projection: what is rotated, and the query, keys and values of each sequence."""

    rotated: Tensor
    queries: list[Tensor]
    new: list[Tensor]


class FusedAttention:
    """Attention of one forward; builds once what all layers share.

    A row of the projection holds queries, keys, values, in this order. Few rows are copied to memory that all
    layers use, so that views are made once per forward.
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
        self._rotated_size = (batch.num_tokens, heads + kv_heads, 2, dim // 2)
        self._rotated_stride = (self._width, dim, dim // 2, 1)
        self._cos = rotary.cos.index_select(0, batch.positions)
        self._sin = rotary.sin.index_select(0, batch.positions)
        masks = batch.masks(None, dtype)
        self._layouts = [self._layout(*pair) for pair in zip(batch.rows, masks, strict=True)]
        self._copy: Tensor | None = None
        if batch.num_tokens <= _FEW_ROWS:
            self._copy = self._cos.new_empty(batch.num_tokens, self._width)
            self._copy_views = self._views(self._copy)

    def __call__(self, layer: int, projected: Tensor) -> Tensor:
        """Return the output of attention, (rows, heads * dim), from the contiguous projection."""
        if self._copy is None:
            views = self._views(projected.to(self._dtype))
        else:
            self._copy.copy_(projected)
            views = self._copy_views
        rotated = views.rotated
        halves_exchanged = rotated.flip(2)
        rotated.mul_(self._cos).addcmul_(halves_exchanged, self._sin)
        parts = [
            self._attend(layer, layout, query, new)
            for layout, query, new in zip(self._layouts, views.queries, views.new, strict=True)
        ]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended if projected.dtype is self._dtype else attended.to(projected.dtype)

    def _views(self, projected: Tensor) -> _Views:
        return _Views(
            rotated=projected.as_strided(self._rotated_size, self._rotated_stride),
            queries=[
                projected.as_strided(each.query_size, each.query_stride, each.query_offset)
                for each in self._layouts
            ],
            new=[
                projected.as_strided(each.new_size, each.new_stride, each.new_offset)
                for each in self._layouts
            ],
        )

    def _attend(self, layer: int, layout: _Layout, query: Tensor, new: Tensor) -> Tensor:
        """Write the KV of one sequence, then attend over all of it."""
        num_rows = layout.rows.num_rows
        keys, values = self._write(layer, layout, new)
        attended = F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=layout.mask,
            is_causal=layout.is_causal,
            scale=self._scale,
            enable_gqa=layout.is_grouped,
        )
        if num_rows > 1:
            attended = attended.transpose(1, 2)
        return attended.reshape(num_rows, self._shape.heads * self._shape.dim)

    def _write_views(self, layer: int, layout: _Layout, new: Tensor) -> tuple[Tensor, Tensor]:
        """Write to contiguous memory; return all keys and values as views of it, (1, KV heads, end, dim)."""
        assert isinstance(self._kv_cache, ContiguousKvCache)
        _, kv_heads, dim = self._shape
        memory = self._kv_cache.slot_tensor(layer, layout.rows.slot, kv_heads, dim, new)
        step = 2 * kv_heads * dim
        memory.as_strided(layout.new_size, (step, 1), layout.rows.start * step).copy_(new)
        stride = (step, dim, step, 1)
        keys = memory.as_strided(layout.cache_size, stride, 0)
        return keys, memory.as_strided(layout.cache_size, stride, kv_heads * dim)

    def _write_rows(self, layer: int, layout: _Layout, new: Tensor) -> tuple[Tensor, Tensor]:
        """Write to any KV cache; return all keys and values, (1, KV heads, end, dim)."""
        keys, values = new
        return self._kv_cache.store(layer, layout.rows.slot, layout.rows.start, keys, values)

    def _layout(self, rows: SequenceRows, mask: Tensor | None) -> _Layout:
        heads, kv_heads, dim = self._shape
        offset = rows.offset * self._width
        if rows.num_rows == 1:  # queries that share a KV head become rows of one product
            group = heads // kv_heads
            size: tuple[int, ...] = (1, kv_heads, group, dim)
            stride: tuple[int, ...] = (self._width, group * dim, dim, 1)
        else:
            size, stride = (1, heads, rows.num_rows, dim), (self._width, dim, self._width, 1)
        new_size: tuple[int, ...] = (rows.num_rows, 2 * kv_heads * dim)
        new_stride: tuple[int, ...] = (self._width, 1)
        if not isinstance(self._kv_cache, ContiguousKvCache):
            new_size = (2, kv_heads, rows.num_rows, dim)
            new_stride = (kv_heads * dim, dim, self._width, 1)
        return _Layout(
            rows=rows,
            mask=mask,
            is_causal=mask is None and rows.num_rows > 1,
            is_grouped=size[1] != kv_heads,
            query_size=size,
            query_stride=stride,
            query_offset=offset,
            new_size=new_size,
            new_stride=new_stride,
            new_offset=offset + heads * dim,
            cache_size=(1, kv_heads, rows.end, dim),
        )
