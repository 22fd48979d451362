"""Attention of the fused forward over paged memory."""

import torch
from torch import Tensor

from services.engine.forward.batched_attention import BatchedAttention
from services.engine.forward.forward_batch import ForwardBatch
from services.engine.forward.rotation import AttentionShape, Rotary, RotatedProjection
from services.engine.memory.paged_kv_cache import PagedKvCache


class BatchedFusedAttention:
    """Attention of one forward: rotary embedding, then all sequences at once."""

    def __init__(
        self,
        batch: ForwardBatch,
        kv_cache: PagedKvCache,
        shape: AttentionShape,
        rotary: Rotary,
        dtype: torch.dtype,
    ) -> None:
        heads, kv_heads, dim = shape
        self._rotate = RotatedProjection(batch, shape, rotary, dtype)
        self._attend = BatchedAttention(batch, kv_cache)
        self._queries_size = (batch.num_tokens, heads, dim)
        self._new_size = (batch.num_tokens, 2, kv_heads, dim)
        self._new_stride = (shape.width, kv_heads * dim, dim, 1)
        self._queries_stride = (shape.width, dim, 1)
        self._new_offset = heads * dim

    def __call__(self, layer: int, projected: Tensor) -> Tensor:
        """Return the output of attention, (rows, heads * dim), from the contiguous projection."""
        rotated = self._rotate(projected)
        queries = rotated.as_strided(self._queries_size, self._queries_stride)
        new = rotated.as_strided(self._new_size, self._new_stride, self._new_offset)
        attended = self._attend(layer, queries, new).flatten(1)
        return attended if projected.dtype is attended.dtype else attended.to(projected.dtype)
