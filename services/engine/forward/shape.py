"""The heads of an attention."""

from typing import NamedTuple


class AttentionShape(NamedTuple):
    """Number of query heads, number of KV heads, and their dimension."""

    heads: int
    kv_heads: int
    dim: int

    @property
    def width(self) -> int:
        """Elements of a row of the projection: queries, keys, values, in this order."""
        return (self.heads + 2 * self.kv_heads) * self.dim
