"""The head: from logits to choices and entropies; logits go no further."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fly.types import EntropyEstimator
from services.engine.base import Scores, Work
from services.engine.processors import excluded_drafts, needs_processing, process

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
        processed, excluded = self._process(raw, batch)
        choices = choose_greedy(processed).tolist()
        entropies = self._entropies(raw, batch)
        scores = []
        row = 0
        for work, flags in zip(batch, excluded, strict=True):
            end = row + work.num_outputs
            scores.append(Scores(tuple(choices[row:end]), tuple(entropies[row:end]), flags))
            row = end
        return scores

    def _process(self, raw: Tensor, batch: Sequence[Work]) -> tuple[Tensor, list[tuple[bool, ...]]]:
        """The logits to choose from, and per work which of its drafts they exclude."""
        processed = raw
        excluded = []
        row = 0
        for work in batch:
            end = row + work.num_outputs
            flags = (False,) * work.num_outputs
            if work.num_outputs and needs_processing(work):
                processed = raw.clone() if processed is raw else processed
                process(processed[row:end], work)
                flags = excluded_drafts(processed[row:end], work.drafts) if work.drafts else flags
            excluded.append(flags)
            row = end
        return processed, excluded

    def _entropies(self, raw: Tensor, batch: Sequence[Work]) -> list[float]:
        """Per row, by the estimator that its sequence asks for."""
        wanted = {work.entropy for work in batch if work.num_outputs}
        if len(wanted) <= 1:
            estimator = wanted.pop() if wanted else EntropyEstimator.TOP_K
            return _as_floats(_ESTIMATE[estimator](raw))
        is_full = [
            work.entropy is EntropyEstimator.NORMALIZED for work in batch for _ in range(work.num_outputs)
        ]
        mask = torch.tensor(is_full, device=raw.device)
        return _as_floats(torch.where(mask, normalized_entropy(raw), top_k_entropy(raw)))


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
