"""Numbers of query rows and keys for which attention sums a row's positions in one order."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from services.engine.forward.shape import AttentionShape

KEY_BLOCK = 512
"""Keys that torch's attention on a CPU takes at a time; each block of a sequence begins at a multiple."""
_GRAIN = 16
"""Keys of the widest vector: fewer at the end of a sum are added in another way."""
_ROWS = (4, 16, 64)
"""Multiples of rows to try: libraries multiply fewer rows by another kernel.

torch takes another library for bfloat16 unless rows x outputs x inputs exceed 4,096, so that a linear of a
tiny model needs many rows.
"""


class Padding(NamedTuple):
    """Query rows and keys that attention computes beyond those of a sequence; these keys are masked.

    Attributes:
        rows: Query rows are padded to a multiple of this.
        lengths: Numbers of keys in the last block, ascending, for which a row's sum has the order of that
            over a whole block; other numbers are padded to the next of them.
    """

    rows: int = 1
    lengths: tuple[int, ...] = ()

    @property
    def is_none(self) -> bool:
        """True if nothing is padded, and masks are left out where none is needed."""
        return self == NO_PADDING

    def padded_rows(self, num_rows: int) -> int:
        """Return the number of query rows to compute."""
        return -(-num_rows // self.rows) * self.rows

    def padded_keys(self, length: int) -> int:
        """Return the number of keys to attend over, masked ones included."""
        rest = length % KEY_BLOCK
        if not rest or not self.lengths:
            return length
        return length - rest + self.lengths[bisect_left(self.lengths, rest)]


NO_PADDING = Padding()


def paddings(shape: AttentionShape, dtype: torch.dtype) -> Iterator[Padding]:
    """Return paddings that may give a row of attention equal bits in any batch, the smallest first.

    NOTE: MKL splits a sum in two for some numbers of keys, so that it has another order than in a block.
    """
    _, kv_heads, dim = shape
    generator = torch.Generator().manual_seed(0)
    memory = torch.randn(KEY_BLOCK, 2, kv_heads, dim, generator=generator).to(dtype).permute(1, 2, 0, 3)
    for rows in _ROWS:
        queries = torch.randn(1, kv_heads, rows, dim, generator=generator).to(dtype)
        lengths = range(_GRAIN, KEY_BLOCK, _GRAIN)
        yield Padding(rows, (*(each for each in lengths if _is_equal(queries, memory, each)), KEY_BLOCK))
    yield Padding(_ROWS[-1], (KEY_BLOCK,))


def _is_equal(queries: Tensor, memory: Tensor, length: int) -> bool:
    """Check that the last rows of a sequence have the same bits as with a whole block of keys."""
    mask = causal_mask(queries.shape[2], KEY_BLOCK, length - queries.shape[2], queries)
    found = (
        F.scaled_dot_product_attention(queries, keys[:1], keys[1:], attn_mask=mask[:, : keys.shape[2]])
        for keys in (memory[:, :, :length], memory)
    )
    return torch.equal(*found)


def causal_mask(num_rows: int, length: int, start: int, like: Tensor) -> Tensor:
    """Return an additive mask, (rows, length), of rows from position `start` on."""
    return like.new_full((num_rows, length), float("-inf")).triu_(start + 1)
