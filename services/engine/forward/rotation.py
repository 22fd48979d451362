"""Rotary embedding of a whole projection: queries and keys at once, in place."""

from typing import NamedTuple

import torch
from torch import Tensor

from services.engine.forward.shape import AttentionShape


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


class RotatedProjection:
    """The rotated projection of each layer of a forward.

    Its rows are copied to memory that all layers use, so that views are made once per forward.

    Attributes:
        shared: That memory, (rows + spare, width); the spare rows are zero.
    """

    def __init__(
        self, positions: Tensor, shape: AttentionShape, rotary: Rotary, dtype: torch.dtype, spare: int = 0
    ) -> None:
        num_rows = len(positions)
        size = (num_rows, shape.heads + shape.kv_heads, 2, shape.dim // 2)
        stride = (shape.width, shape.dim, shape.dim // 2, 1)
        self._cos = rotary.cos.index_select(0, positions)
        self._sin = rotary.sin.index_select(0, positions)
        self.shared = self._cos.new_zeros(num_rows + spare, shape.width, dtype=dtype)
        self._rows = self.shared[:num_rows]
        self._heads = self.shared.as_strided(size, stride)

    def __call__(self, projected: Tensor) -> Tensor:
        """Copy a projection, (rows, width), rotate its queries and keys, and return the copy."""
        self._rows.copy_(projected)
        halves_exchanged = self._heads.flip(2)
        self._heads.mul_(self._cos).addcmul_(halves_exchanged, self._sin)
        return self._rows
