"""A head whose plain rows, greedy and from logits that nothing changes, a kernel scores where they are."""

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from fly.types import EntropyEstimator
from gpu_kernels.checks import checked_row_facts
from services.engine.base import ForwardInput, Scores
from services.engine.head.chunks import Part
from services.engine.head.facts import add_gaps
from services.engine.head.finite import bad_rows, cut, joined, raw_fault
from services.engine.head.head import Head
from services.engine.head.logits_processors import needs_processing


class KernelHead(Head):
    """Scores plain inputs by the kernel, and all others by torch."""

    def __call__(self, logits: Tensor, batch: Sequence[ForwardInput]) -> list[Scores]:
        """As `Head`."""
        ends = accumulate(item.num_outputs for item in batch)
        parts = [
            Part(number, item, end - item.num_outputs, 0, item.num_outputs)
            for number, (item, end) in enumerate(zip(batch, ends, strict=True))
        ]
        plain = [part for part in parts if part.num_rows and is_plain(part.item)]
        found = dict(zip((part.number for part in plain), self._score_plain(logits, plain), strict=True))
        others = [part for part in parts if part.number not in found]
        rest = super().__call__(_rows_of(logits, others), [part.item for part in others])
        found |= {part.number: scores for part, scores in zip(others, rest, strict=True)}
        return [found[part.number] for part in parts]

    def _score_plain(self, logits: Tensor, parts: Sequence[Part]) -> list[Scores]:
        if not parts:
            return []
        rows = None if sum(part.num_rows for part in parts) == len(logits) else _index(parts, logits.device)
        facts = checked_row_facts(logits.device)(logits, self._vocab_size, rows)
        choices, largest, _, _, _, entropies = facts.T.tolist()
        ends = [*accumulate(part.num_rows for part in parts)]
        spans = [slice(end - part.num_rows, end) for part, end in zip(parts, ends, strict=True)]
        bad = bad_rows([math.isfinite(each) for each in largest], spans)
        scores = []
        for part, span, row in zip(parts, spans, bad, strict=True):
            end = span.stop if row is None else span.start + row
            score = _scores(part.item, choices[span.start : end], entropies[span.start : end])
            scores.append(cut(score, None if row is None else raw_fault(part, row)))
        return [joined([each]) for each in add_gaps(logits, parts, scores)]


def is_plain(item: ForwardInput) -> bool:
    """Check that an input's scores follow from the facts of its rows: choice, top-3 entropy, and no more."""
    is_greedy = item.sampling.temperature <= 0 and not needs_processing(item)
    has_known_entropy = item.is_proposing or item.entropy is not EntropyEstimator.NORMALIZED
    return is_greedy and item.num_logprobs is None and has_known_entropy


def _scores(item: ForwardInput, choices: Sequence[float], entropies: Sequence[float]) -> Scores:
    has_entropy = item.entropy is not None and not item.is_proposing
    return Scores(
        choices=tuple(map(int, choices)),
        entropies=tuple(entropies) if has_entropy else (0.0,) * len(choices),
        excluded=(False,) * len(choices),
    )


def _rows_of(logits: Tensor, parts: Sequence[Part]) -> Tensor:
    return (
        logits
        if sum(part.num_rows for part in parts) == len(logits)
        else logits[_index(parts, logits.device)]
    )


def _index(parts: Sequence[Part], device: torch.device) -> Tensor:
    rows = [row for part in parts for row in range(part.row, part.row + part.num_rows)]
    return torch.tensor(rows, dtype=torch.long, device=device)
