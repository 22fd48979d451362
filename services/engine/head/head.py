"""The head: from logits to choices and entropies; logits go no further."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from fly.types import EntropyEstimator
from services.engine.base import Scores, Work
from services.engine.head.logprobs import logprobs
from services.engine.head.processors import excluded_drafts, needs_processing, process
from services.engine.head.sampler import sampled_scores
from services.engine.head.sampling import sample

TOP_K = 3


class Head:
    """Scores all output rows of a batch at once: raw logits, processors where rows ask for them, chooser."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, logits: Tensor, batch: Sequence[Work]) -> list[Scores]:
        """Scores per work.

        Args:
            logits: Of all output rows, (rows, embedding rows); those beyond the vocabulary are padding.
            batch: Whose output rows they are, in order.
        """
        raw = logits[:, : self._vocab_size].float()
        spans = _spans(batch)
        processed = _process(raw, batch, spans)
        drawn = sample(processed, batch, spans)
        is_greedy = any(work.num_outputs and index not in drawn for index, work in enumerate(batch))
        greedy = choose_greedy(processed).tolist() if is_greedy else []
        entropies = self._entropies(raw, batch)
        scores = []
        for index, (work, span) in enumerate(zip(batch, spans, strict=True)):
            if index in drawn:
                answer = sampled_scores(drawn[index], entropies[span])
            else:
                excluded = _excluded(processed[span], work)
                answer = Scores(tuple(greedy[span]), tuple(entropies[span]), excluded)
            scores.append(_with_logprobs(answer, raw[span], work))
        return scores

    def _entropies(self, raw: Tensor, batch: Sequence[Work]) -> list[float]:
        """Per row, by the estimator that its sequence asks for; nobody judges by a drafter's."""
        wanted = {work.entropy for work in batch if work.num_outputs and not work.is_proposing}
        if not wanted:
            return [0.0] * len(raw)
        if len(wanted) == 1:
            return _as_floats(_ESTIMATE[wanted.pop()](raw))
        is_full = [
            work.entropy is EntropyEstimator.NORMALIZED for work in batch for _ in range(work.num_outputs)
        ]
        mask = torch.tensor(is_full, device=raw.device)
        return _as_floats(torch.where(mask, normalized_entropy(raw), top_k_entropy(raw)))


def _spans(batch: Sequence[Work]) -> list[slice]:
    """Which output rows are whose."""
    ends = list(accumulate(work.num_outputs for work in batch))
    return [slice(end - work.num_outputs, end) for work, end in zip(batch, ends, strict=True)]


def _process(raw: Tensor, batch: Sequence[Work], spans: Sequence[slice]) -> Tensor:
    """The logits to choose from; the raw ones where nobody asks for a change."""
    changes = [index for index, work in enumerate(batch) if work.num_outputs and needs_processing(work)]
    processed = raw.clone() if changes else raw
    for index in changes:
        process(processed[spans[index]], batch[index])
    return processed


def _excluded(processed: Tensor, work: Work) -> tuple[bool, ...]:
    """Which drafts of a greedy work the processed logits rule out."""
    if work.num_outputs and work.drafts and needs_processing(work):
        return excluded_drafts(processed, work.drafts)
    return (False,) * work.num_outputs


def _with_logprobs(scores: Scores, raw: Tensor, work: Work) -> Scores:
    if work.num_logprobs is None or not work.num_outputs:
        return scores
    drafts = work.drafts or (-1,) * work.num_outputs
    return replace(scores, logprobs=logprobs(raw, scores.choices, drafts, work.num_logprobs))


def choose_greedy(logits: Tensor) -> Tensor:
    """The most likely token of each row; not `topk`, which breaks ties otherwise."""
    return logits.argmax(-1)


def top_k_entropy(logits: Tensor) -> Tensor:
    """`-sum p ln p` over the three largest probabilities of the full softmax, in nats, per row."""
    top = logits.topk(min(TOP_K, logits.shape[-1]), dim=-1, sorted=False).values
    log_p = top - logits.logsumexp(-1, keepdim=True)
    entropy: Tensor = -(log_p.exp() * log_p).sum(-1)
    return entropy


def normalized_entropy(logits: Tensor) -> Tensor:
    """Entropy over the whole vocabulary divided by its largest possible value, per row."""
    log_p = logits.log_softmax(-1)
    entropy: Tensor = torch.special.entr(log_p.exp()).sum(-1)
    return entropy / math.log(logits.shape[-1])


_ESTIMATE: dict[EntropyEstimator, Callable[[Tensor], Tensor]] = {
    EntropyEstimator.TOP_K: top_k_entropy,
    EntropyEstimator.NORMALIZED: normalized_entropy,
}


def _as_floats(values: Tensor) -> list[float]:
    floats: list[float] = values.tolist()
    return floats
