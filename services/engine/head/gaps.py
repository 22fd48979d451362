"""Gaps: by how much a draft token is less likely than the choice, from the logits that the model computed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from services.engine.base import Scores
from services.engine.head.chunks import Part


class _Mismatch(NamedTuple):
    """A draft token that is not the choice.

    Attributes:
        part: Index of its part in the chunk.
        row: Its row among those of the part.
    """

    part: int
    row: int
    choice: int
    draft: int


def add_gaps(logits: Tensor, chunk: Sequence[Part], scores: Sequence[Scores]) -> list[Scores]:
    """Return the scores with the gaps of those parts of a chunk whose inputs are `with_gaps`.

    `logits` are those of all output rows of the batch. The normalization of a row cancels out, so the gap is
    the difference of two raw logits.
    """
    gaps = [
        [0.0] * len(score.choices) if part.item.with_gaps else []
        for part, score in zip(chunk, scores, strict=True)
    ]
    if mismatches := [*_mismatches(chunk, scores)]:
        rows = [chunk[each.part].row + each.row for each in mismatches]
        wanted = [rows, [each.choice for each in mismatches], [each.draft for each in mismatches]]
        row, choice, draft = torch.tensor(wanted, device=logits.device)
        found = (logits[row, choice].float() - logits[row, draft].float()).tolist()
        for mismatch, gap in zip(mismatches, found, strict=True):
            gaps[mismatch.part][mismatch.row] = gap
    return [
        replace(score, gaps=tuple(gap)) if gap else score for score, gap in zip(scores, gaps, strict=True)
    ]


def _mismatches(chunk: Sequence[Part], scores: Sequence[Scores]) -> Iterator[_Mismatch]:
    for index, (part, score) in enumerate(zip(chunk, scores, strict=True)):
        if part.item.with_gaps:
            for row, (choice, draft) in enumerate(zip(score.choices, part.drafts, strict=False)):
                if draft >= 0 and draft != choice:
                    yield _Mismatch(index, row, choice, draft)
