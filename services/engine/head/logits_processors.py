"""Logits processors: bias, penalties, and stop tokens that are not allowed before min_tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fly.request import SamplingParams
from services.engine.base import ForwardInput


def needs_processing(item: ForwardInput) -> bool:
    """Check that the logits of some output row must be changed."""
    sampling = item.sampling
    return (
        bool(sampling.logit_bias)
        or _has_penalties(sampling)
        or (bool(sampling.stop_token_ids) and _first_response_index(item) < sampling.min_tokens)
    )


def process(logits: Tensor, item: ForwardInput) -> None:
    """Change a sequence's output rows (outputs, vocabulary) in place.

    The prefix of a row ends at its own position and includes drafts. The repetition penalty counts prompt and
    response; presence and frequency penalties count the response only (as vLLM does).
    """
    sampling = item.sampling
    if sampling.logit_bias:
        ids, biases = zip(*sampling.logit_bias.items(), strict=True)
        logits[:, list(ids)] += torch.tensor(biases, dtype=logits.dtype, device=logits.device)
    if _has_penalties(sampling):
        _penalize(logits, item)
    num_masked = min(max(0, sampling.min_tokens - _first_response_index(item)), item.num_outputs)
    if num_masked and sampling.stop_token_ids:
        logits[:num_masked, list(sampling.stop_token_ids)] = float("-inf")


def excluded_drafts(logits: Tensor, drafts: Sequence[int]) -> tuple[bool, ...]:
    """Return per row whether the processed logits (outputs, vocabulary) exclude its draft."""
    index = torch.tensor(drafts, device=logits.device)
    drafted = logits.gather(1, index.clamp(min=0)[:, None])[:, 0]
    return tuple((drafted.isneginf() & (index >= 0)).tolist())


def _has_penalties(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


def _first_response_index(item: ForwardInput) -> int:
    """Return the number of response tokens before the one that the first output row chooses."""
    return item.first_position - item.prompt_length


def _penalize(logits: Tensor, item: ForwardInput) -> None:
    sampling = item.sampling
    first, last = item.first_position, item.start + len(item.tokens)
    history = torch.tensor(item.history[:last], device=logits.device)
    ids, sample_requests = torch.unique(history, return_inverse=True)
    seen = _counts(sample_requests, 0, first, item.num_outputs, len(ids))
    written = _counts(sample_requests, item.prompt_length, first, item.num_outputs, len(ids))
    values = logits[:, ids]
    penalty = sampling.repetition_penalty
    repeated = torch.where(values > 0, values / penalty, values * penalty)
    values = torch.where(seen > 0, repeated, values)
    values -= sampling.frequency_penalty * written + sampling.presence_penalty * (written > 0)
    logits[:, ids] = values


def _counts(sample_requests: Tensor, begin: int, first: int, num_rows: int, num_ids: int) -> Tensor:
    """Count each id between position `begin` and the end of each row's prefix, (rows, ids)."""
    counts = torch.zeros(num_rows, num_ids, device=sample_requests.device)
    counts[0] = torch.bincount(sample_requests[min(begin, first) : first], minlength=num_ids)
    later = torch.arange(first, first + num_rows - 1, device=sample_requests.device)
    rows = torch.arange(1, num_rows, device=sample_requests.device)
    is_counted = later >= begin
    counts[rows[is_counted], sample_requests[later[is_counted]]] = 1.0
    return counts.cumsum(0)
