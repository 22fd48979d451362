"""Plain rows: greedy, from logits that nothing changes. On a GPU a kernel scores them where they are."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fly.types import EntropyEstimator
from services.engine.base import ForwardInput, Scores
from services.engine.head.chunks import Part, spans_of
from services.engine.head.finite import bad_rows, cut, raw_fault
from services.engine.head.logits_processors import needs_processing
from services.engine.kernels.choice import RowFacts


def is_plain(item: ForwardInput) -> bool:
    """Check that an input's scores follow from the facts of its rows: choice, top-3 entropy, and no more."""
    is_greedy = item.sampling.temperature <= 0 and not needs_processing(item)
    return is_greedy and item.num_logprobs is None and (item.is_proposing or not _is_normalized(item))


def score_plain(
    row_facts: RowFacts, logits: Tensor, vocab_size: int, chunk: Sequence[Part], index: Sequence[int]
) -> list[Scores]:
    """Return the scores of each part of a chunk of plain inputs, whose rows of the logits are `index`."""
    is_consecutive = index[-1] - index[0] == len(index) - 1
    if is_consecutive:
        facts = row_facts(logits[index[0] : index[-1] + 1], vocab_size)
    else:
        facts = row_facts(logits, vocab_size, torch.tensor(index, device=logits.device))
    choices, largest, _, _, _, entropies = facts.T.tolist()
    spans = spans_of(chunk)
    bad = bad_rows([math.isfinite(each) for each in largest], spans)
    results = []
    for part, span, row in zip(chunk, spans, bad, strict=True):
        end = span.stop if row is None else span.start + row
        score = _scores(part.item, choices[span.start : end], entropies[span.start : end])
        results.append(cut(score, None if row is None else raw_fault(part, row)))
    return results


def _scores(item: ForwardInput, choices: Sequence[float], entropies: Sequence[float]) -> Scores:
    has_entropy = item.entropy is not None and not item.is_proposing
    return Scores(
        choices=tuple(map(int, choices)),
        entropies=tuple(entropies) if has_entropy else (0.0,) * len(choices),
        excluded=(False,) * len(choices),
    )


def _is_normalized(item: ForwardInput) -> bool:
    return item.entropy is EntropyEstimator.NORMALIZED
