"""Attention of the fused forward: strided views of contiguous memory; any attention over other memory."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from services.engine.forward.attention import Attention
from services.engine.forward.forward_batch import ForwardBatch, SequenceRows
from services.engine.forward.rotation import Rotary, RotatedProjection
from services.engine.forward.shape import AttentionShape
from services.engine.memory.kv_cache import ContiguousKvCache


class _Layout(NamedTuple):
    """Sizes and strides of one sequence's views, equal for every layer.

    Attributes:
        used_size: Size of the query without padding; None if it has none.
    """

    rows: SequenceRows
    mask: Tensor | None
    used_size: tuple[int, ...] | None
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
    """Views of a projection: the query, and the new keys and values, of each sequence."""

    queries: list[Tensor]
    new: list[Tensor]


class FusedAttention:
    """Attention of one forward; builds once what all layers share."""

    def __init__(
        self,
        batch: ForwardBatch,
        kv_cache: ContiguousKvCache,
        shape: AttentionShape,
        rotary: Rotary,
        dtype: torch.dtype,
    ) -> None:
        self._shape = shape
        self._kv_cache = kv_cache
        self._dtype = dtype
        self._scale = shape.dim**-0.5
        for rows in batch.rows:
            kv_cache.clear_after(rows.slot, rows.end)
        masks = batch.masks(None, dtype, padding=kv_cache.padding)
        self._layouts = [self._layout(*pair) for pair in zip(batch.rows, masks, strict=True)]
        self._rotate = RotatedProjection(
            batch.positions, shape, rotary, dtype, spare=kv_cache.padding.rows - 1
        )
        self._views = self._make_views(self._rotate.shared)

    def __call__(self, layer: int, projected: Tensor) -> Tensor:
        """Return the output of attention, (rows, heads * dim), from the contiguous projection."""
        self._rotate(projected)
        queries, new = self._views
        parts = [self._attend(layer, *each) for each in zip(self._layouts, queries, new, strict=True)]
        attended = parts[0] if len(parts) == 1 else torch.cat(parts)
        return attended if projected.dtype is self._dtype else attended.to(projected.dtype)

    def _make_views(self, rotated: Tensor) -> _Views:
        return _Views(
            queries=[
                rotated.as_strided(each.query_size, each.query_stride, each.query_offset)
                for each in self._layouts
            ],
            new=[
                rotated.as_strided(each.new_size, each.new_stride, each.new_offset) for each in self._layouts
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
        if layout.used_size is not None:
            attended = attended.as_strided(layout.used_size, attended.stride())
        if num_rows > 1:
            attended = attended.transpose(1, 2)
        return attended.reshape(num_rows, self._shape.heads * self._shape.dim)

    def _write(self, layer: int, layout: _Layout, new: Tensor) -> tuple[Tensor, Tensor]:
        """Return all keys and values as views of the memory, (1, KV heads, end, dim)."""
        _, kv_heads, dim = self._shape
        memory = self._kv_cache.slot_tensor(layer, layout.rows.slot, kv_heads, dim, new)
        step = 2 * kv_heads * dim
        memory.as_strided(layout.new_size, (step, 1), layout.rows.start * step).copy_(new)
        stride = (step, dim, step, 1)
        keys = memory.as_strided(layout.cache_size, stride, 0)
        return keys, memory.as_strided(layout.cache_size, stride, kv_heads * dim)

    def _layout(self, rows: SequenceRows, mask: Tensor | None) -> _Layout:
        """Lay out the views; padding of a query reads what follows it in memory, and is not used."""
        heads, kv_heads, dim = self._shape
        width, padding = self._shape.width, self._kv_cache.padding
        used_rows = rows.num_rows
        if rows.num_rows == 1:  # queries that share a KV head become rows of one product
            used_rows = group = heads // kv_heads
            size: tuple[int, ...] = (1, kv_heads, padding.padded_rows(group), dim)
            stride: tuple[int, ...] = (width, group * dim, dim, 1)
            mask = None if mask is None else mask[:1].expand(1, 1, size[2], -1)
        else:
            size, stride = (1, heads, padding.padded_rows(rows.num_rows), dim), (width, dim, width, 1)
        return _Layout(
            rows=rows,
            mask=mask,
            used_size=None if used_rows == size[2] else (*size[:2], used_rows, dim),
            is_causal=mask is None and rows.num_rows > 1,
            is_grouped=size[1] != kv_heads,
            query_size=size,
            query_stride=stride,
            query_offset=rows.offset * width,
            new_size=(rows.num_rows, 2 * kv_heads * dim),
            new_stride=(width, 1),
            new_offset=rows.offset * width + heads * dim,
            cache_size=(1, kv_heads, padding.padded_keys(rows.end), dim),
        )


class RotatedAttention:
    """Rotary embedding, then an attention that writes and reads the KV memory itself."""

    def __init__(
        self,
        positions: Tensor,
        attend: Attention,
        shape: AttentionShape,
        rotary: Rotary,
        dtype: torch.dtype,
    ) -> None:
        heads, kv_heads, dim = shape
        self._rotate = RotatedProjection(positions, shape, rotary, dtype)
        self._attend = attend
        self._queries = (len(positions), heads, dim), (shape.width, dim, 1)
        self._new = (len(positions), 2, kv_heads, dim), (shape.width, kv_heads * dim, dim, 1), heads * dim

    def __call__(self, layer: int, projected: Tensor) -> Tensor:
        """Return the output of attention, (rows, heads * dim), from the contiguous projection."""
        rotated = self._rotate(projected)
        queries, new = rotated.as_strided(*self._queries), rotated.as_strided(*self._new)
        attended = self._attend(layer, queries, new).flatten(1)
        return attended if projected.dtype is attended.dtype else attended.to(projected.dtype)
