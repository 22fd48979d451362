"""Which sequences of a batch attend in one call: padding to the longest must cost little."""

from collections.abc import Sequence
from typing import NamedTuple

_MAX_ROWS = 64
"""A sequence with more new rows, a prefill, is alone: its arithmetic takes longer than a call."""
_FREE_POSITIONS = 8192
"""Padding that costs less than another call."""
_MAX_PADDING = 1.5
"""Beyond that, a group reads at most this many times the positions of its sequences."""


class Extent(NamedTuple):
    """A sequence's new rows, and the positions that they attend to."""

    num_rows: int
    num_positions: int


def group_sequences(extents: Sequence[Extent], max_positions: int) -> list[list[int]]:
    """Divide the sequences of a batch into groups of similar length, in few groups.

    Args:
        extents: One per sequence.
        max_positions: Positions that a group reads, with padding; a single sequence may have more.

    Returns:
        Indices of the sequences of each group, in ascending order. Every sequence is in one group.
    """
    groups = [[index] for index, extent in enumerate(extents) if extent.num_rows > _MAX_ROWS]
    few = [index for index, extent in enumerate(extents) if extent.num_rows <= _MAX_ROWS]
    few.sort(key=lambda index: -extents[index].num_positions)
    group: list[int] = []
    own = 0  # positions of the group's sequences, without padding
    for index in few:
        length = extents[index].num_positions
        padded = (len(group) + 1) * extents[group[0] if group else index].num_positions
        limit = min(max_positions, max(_FREE_POSITIONS, _MAX_PADDING * (own + length)))
        if group and padded > limit:
            groups.append(sorted(group))
            group, own = [], 0
        group.append(index)
        own += length
    return [*groups, sorted(group)] if group else groups
