"""The head: from logits to choices, entropies and log-probabilities."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from fly.noise import BLOCK
from fly.types import EntropyEstimator, PositionLogprobs
from services.engine.base import ForwardInput, Scores
from services.engine.head.candidates import DenseCandidates
from services.engine.head.logits_processors import excluded_drafts, needs_processing, process
from services.engine.head.sampler import DrawnToken, Sampler, sample_requests, sampled_scores

TOP_K = 3


class Head:
    """Scores all output rows of a batch at once: logits processors, then greedy choice or sampling."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __call__(self, logits: Tensor, batch: Sequence[ForwardInput]) -> list[Scores]:
        """Return the scores of each input from the logits of all output rows, (rows, embedding rows).

        The rows are in the order of the inputs, and padded beyond the vocabulary.
        """
        raw = logits[:, : self._vocab_size].float()
        spans = _spans(batch)
        processed = _process(raw, batch, spans)
        drawn = sample(processed, batch, spans)
        is_greedy = any(item.num_outputs and index not in drawn for index, item in enumerate(batch))
        greedy = choose_greedy(processed).tolist() if is_greedy else []
        entropies = self._entropies(raw, batch)
        scores = []
        for index, (item, span) in enumerate(zip(batch, spans, strict=True)):
            if index in drawn:
                score = sampled_scores(drawn[index], entropies[span])
            else:
                excluded = _excluded(processed[span], item)
                score = Scores(tuple(greedy[span]), tuple(entropies[span]), excluded)
            scores.append(_with_logprobs(score, raw[span], item))
        return scores

    def _entropies(self, raw: Tensor, batch: Sequence[ForwardInput]) -> list[float]:
        """Return the entropy of each row by its sequence's estimator; 0 if all rows are proposing."""
        estimators = {item.entropy for item in batch if item.num_outputs and not item.is_proposing}
        if not estimators:
            return [0.0] * len(raw)
        if len(estimators) == 1:
            return _as_floats(_ESTIMATE[estimators.pop()](raw))
        is_full = [
            item.entropy is EntropyEstimator.NORMALIZED for item in batch for _ in range(item.num_outputs)
        ]
        mask = torch.tensor(is_full, device=raw.device)
        return _as_floats(torch.where(mask, normalized_entropy(raw), top_k_entropy(raw)))


def _spans(batch: Sequence[ForwardInput]) -> list[slice]:
    """Return the output rows of each input."""
    ends = list(accumulate(item.num_outputs for item in batch))
    return [slice(end - item.num_outputs, end) for item, end in zip(batch, ends, strict=True)]


def _process(raw: Tensor, batch: Sequence[ForwardInput], spans: Sequence[slice]) -> Tensor:
    """Return the processed logits; the raw ones if no input has processors."""
    changed = [index for index, item in enumerate(batch) if item.num_outputs and needs_processing(item)]
    processed = raw.clone() if changed else raw
    for index in changed:
        process(processed[spans[index]], batch[index])
    return processed


def _excluded(processed: Tensor, item: ForwardInput) -> tuple[bool, ...]:
    """Return which drafts of a greedy input the logits processors exclude."""
    if item.num_outputs and item.drafts and needs_processing(item):
        return excluded_drafts(processed, item.drafts)
    return (False,) * item.num_outputs


def _with_logprobs(scores: Scores, raw: Tensor, item: ForwardInput) -> Scores:
    if item.num_logprobs is None or not item.num_outputs:
        return scores
    drafts = item.drafts or (-1,) * item.num_outputs
    return replace(scores, logprobs=_logprobs(raw, scores.choices, drafts, item.num_logprobs))


def _logprobs(
    logits: Tensor, choices: Sequence[int], drafts: Sequence[int], count: int
) -> tuple[PositionLogprobs, ...]:
    """Return log-probabilities of each row's draft, choice and `count` most likely tokens.

    The logits are raw, (rows, vocabulary); a draft of -1 stands for none.
    """
    total = logits.logsumexp(-1)
    wanted = torch.tensor([choices, [max(0, draft) for draft in drafts]], device=logits.device).T
    chosen = (logits.gather(1, wanted) - total[:, None]).tolist()
    values, ids = logits.topk(min(count, logits.shape[1]), dim=-1)
    tops = zip(ids.tolist(), (values - total[:, None]).tolist(), strict=True)
    return tuple(
        PositionLogprobs(
            draft=of_draft if draft >= 0 else None, choice=of_choice, top=tuple(zip(*top, strict=True))
        )
        for draft, (of_choice, of_draft), top in zip(drafts, chosen, tops, strict=True)
    )


def choose_greedy(logits: Tensor) -> Tensor:
    """Return the most likely token of each row; not by `topk`, which breaks ties differently."""
    return logits.argmax(-1)


def top_k_entropy(logits: Tensor) -> Tensor:
    """Return `-sum p ln p` over the three largest probabilities of the full softmax, in nats, per row."""
    top = logits.topk(min(TOP_K, logits.shape[-1]), dim=-1, sorted=False).values
    log_p = top - logits.logsumexp(-1, keepdim=True)
    entropy: Tensor = -(log_p.exp() * log_p).sum(-1)
    return entropy


def normalized_entropy(logits: Tensor) -> Tensor:
    """Return the entropy over the whole vocabulary divided by its largest possible value, per row."""
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


def sample(
    logits: Tensor, batch: Sequence[ForwardInput], spans: Sequence[slice]
) -> dict[int, list[DrawnToken]]:
    """Draw the tokens of every input with a temperature above 0; return them by the input's index.

    `logits` are those of all output rows, processed, float32; `spans` are the rows of each input.
    """
    sampling = [
        index for index, item in enumerate(batch) if item.num_outputs and item.sampling.temperature > 0
    ]
    if not sampling:
        return {}
    rows = np.concatenate([np.arange(spans[index].start, spans[index].stop) for index in sampling])
    maxima = torch.cat([block_maxima(logits[spans[index]]) for index in sampling])
    candidates = DenseCandidates(logits.cpu().numpy(), rows, maxima.cpu().numpy())
    drawn = iter(
        Sampler(
            candidates, [request for index in sampling for request in sample_requests(batch[index])]
        ).draw()
    )
    return {index: [next(drawn) for _ in range(batch[index].num_outputs)] for index in sampling}


def block_maxima(logits: Tensor) -> Tensor:
    """Return the largest of each `BLOCK` logits of (rows, vocabulary), (rows, blocks)."""
    num_rows, vocabulary = logits.shape
    num_whole = vocabulary // BLOCK
    whole = logits[:, : num_whole * BLOCK].reshape(num_rows, num_whole, BLOCK).amax(-1)
    if vocabulary % BLOCK == 0:
        return whole
    return torch.cat([whole, logits[:, num_whole * BLOCK :].amax(-1, keepdim=True)], dim=1)
