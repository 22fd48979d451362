"""Rotary embedding of a whole projection: queries and keys at once, in place."""

from typing import NamedTuple

import torch
from torch import Tensor

from services.engine.forward.forward_batch import ForwardBatch


class AttentionShape(NamedTuple):
    """Number of query heads, number of KV heads, and their dimension."""

    heads: int
    kv_heads: int
    dim: int

    @property
    def width(self) -> int:
        """Elements of a row of the projection: queries, keys, values, in this order."""
        return (self.heads + 2 * self.kv_heads) * self.dim


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


class RotatedProjection:
    """The rotated projection of each layer of a forward.

    Few rows are copied to memory that all layers use, so that views are made once per forward.

    Attributes:
        shared: That memory, (rows, width); None if each layer's projection is rotated where it is.
    """

    def __init__(
        self, batch: ForwardBatch, shape: AttentionShape, rotary: Rotary, dtype: torch.dtype
    ) -> None:
        self._dtype = dtype
        self._size = (batch.num_tokens, shape.heads + shape.kv_heads, 2, shape.dim // 2)
        self._stride = (shape.width, shape.dim, shape.dim // 2, 1)
        self._cos = rotary.cos.index_select(0, batch.positions)
        self._sin = rotary.sin.index_select(0, batch.positions)
        self.shared: Tensor | None = None
        if batch.num_tokens <= _FEW_ROWS:
            self.shared = self._cos.new_empty(batch.num_tokens, shape.width)
            self._shared_heads = self._heads(self.shared)

    def __call__(self, projected: Tensor) -> Tensor:
        """Return a contiguous projection, (rows, width), with queries and keys rotated; it may be changed."""
        if self.shared is None:
            projected = projected.to(self._dtype)
            heads = self._heads(projected)
        else:
            projected, heads = self.shared.copy_(projected), self._shared_heads
        halves_exchanged = heads.flip(2)
        heads.mul_(self._cos).addcmul_(halves_exchanged, self._sin)
        return projected

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.as_strided(self._size, self._stride)
