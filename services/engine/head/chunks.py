"""Chunks: the output rows of a batch, divided into those that are scored at once."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from flyserve.core.types import Coupling
from services.engine.base import ForwardInput


class Part(NamedTuple):
    """Consecutive output rows of one input.

    Attributes:
        number: Index of the input in the batch.
        item: The input.
        row: Row of the first among all output rows of the batch.
        first: Index of the first among the input's outputs.
        num_rows: Number of rows.
    """

    number: int
    item: ForwardInput
    row: int
    first: int
    num_rows: int

    @property
    def end(self) -> int:
        return self.first + self.num_rows

    @property
    def drafts(self) -> Sequence[int]:
        """The token that follows each row; -1 for none."""
        return self.item.drafts[self.first : self.end] if self.item.drafts else (-1,) * self.num_rows


def chunks_of(batch: Sequence[ForwardInput], most_rows: int) -> Iterator[list[Part]]:
    """Divide the output rows into chunks that are all greedy or all sampled under one coupling."""
    starts = accumulate((item.num_outputs for item in batch), initial=0)
    kinds: dict[Coupling | None, list[Part]] = {}
    for index, (item, row) in enumerate(zip(batch, starts, strict=False)):
        kind = item.sampling.coupling if item.sampling.temperature > 0 else None
        if item.num_outputs:
            kinds.setdefault(kind, []).append(Part(index, item, row, 0, item.num_outputs))
    for parts in kinds.values():
        yield from _cut(parts, most_rows)


def _cut(parts: Sequence[Part], most_rows: int) -> Iterator[list[Part]]:
    """Cut parts into chunks of at most `most_rows` rows."""
    chunk, room = list[Part](), most_rows
    for part in parts:
        done = 0
        while done < part.num_rows:
            num_rows = min(room, part.num_rows - done)
            chunk.append(part._replace(row=part.row + done, first=done, num_rows=num_rows))
            done, room = done + num_rows, room - num_rows
            if room == 0:
                yield chunk
                chunk, room = [], most_rows
    if chunk:
        yield chunk


def spans_of(chunk: Sequence[Part]) -> list[slice]:
    """Return the rows of each part among those of its chunk."""
    ends = list(accumulate(part.num_rows for part in chunk))
    return [slice(end - part.num_rows, end) for part, end in zip(chunk, ends, strict=True)]
