"""Facts of rows, from the logits that the model computed: entropies, log-probabilities and gaps of drafts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from flyserve.core.types import EntropyEstimator, PositionLogprobs
from services.engine.base import Scores
from services.engine.head.chunks import Part, spans_of
from services.engine.head.leading import leading_logits
from services.engine.head.mass import Mass

TOP_K = 3


class RawFacts:
    """Entropies and log-probabilities of a chunk's rows, from the logits that the model computed.

    Attributes:
        entropies: Entropy of each row by its sequence's estimator; 0 without one, or while it is proposing.
        mass: Mass of the rows at temperature 1; None if nothing needs it.
    """

    def __init__(
        self, logits: Tensor, blocks: Tensor, maxima: Tensor, scratch: Tensor, chunk: Sequence[Part]
    ) -> None:
        estimators = {part.item.entropy for part in chunk if not part.item.is_proposing}
        counts = [part.item.num_logprobs for part in chunk if part.item.num_logprobs is not None]
        self.entropies = [0.0] * len(logits)
        self.mass: Mass | None = None
        if counts or EntropyEstimator.TOP_K in estimators:
            count = min(max(TOP_K, *counts, 0), logits.shape[1])
            self._values, self._ids = leading_logits(blocks, maxima, count)
            self.mass = Mass(blocks, maxima, None, scratch)
            self._totals = self.mass.log(self.mass.totals).float()
        if EntropyEstimator.TOP_K in estimators:
            self.entropies = top_k_entropy(self._values, self._totals).tolist()
        for part, span in zip(chunk, spans_of(chunk), strict=True):
            if part.item.is_proposing or part.item.entropy is None:
                self.entropies[span] = [0.0] * part.num_rows
            elif part.item.entropy is EntropyEstimator.NORMALIZED:
                self.entropies[span] = normalized_entropy(logits[span]).tolist()

    def logprobs(
        self, logits: Tensor, span: slice, choices: Sequence[int], drafts: Sequence[int], count: int
    ) -> tuple[PositionLogprobs, ...]:
        """Return log-probabilities of each row's draft, choice and `count` most likely tokens.

        The logits are raw, (rows, vocabulary); a draft of -1 stands for none.
        """
        totals = self._totals[span]
        wanted = torch.tensor([choices, [max(0, draft) for draft in drafts]], device=logits.device).T
        chosen = (logits.gather(1, wanted).float() - totals).tolist()
        values = (self._values[span, :count] - totals).tolist()
        tops = zip(self._ids[span, :count].tolist(), values, strict=True)
        return tuple(
            PositionLogprobs(
                draft=of_draft if draft >= 0 else None, choice=of_choice, top=tuple(zip(*top, strict=True))
            )
            for draft, (of_choice, of_draft), top in zip(drafts, chosen, tops, strict=True)
        )


def top_k_entropy(logits: Tensor, totals: Tensor) -> Tensor:
    """Return `-sum p ln p` over the three largest probabilities of the full softmax, in nats, per row.

    `logits` are the largest of each row in descending order, `totals`, (rows, 1), the logsumexp of all.
    """
    log_p = logits[:, :TOP_K] - totals
    entropy: Tensor = -(log_p.exp() * log_p).sum(-1)
    return entropy


def normalized_entropy(logits: Tensor) -> Tensor:
    """Return the entropy over the whole vocabulary divided by its largest possible value, per row."""
    log_p = logits.log_softmax(-1)
    entropy: Tensor = torch.special.entr(log_p.exp()).sum(-1)
    return entropy / math.log(logits.shape[-1])


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
