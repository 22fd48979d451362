"""What changes the logits before a token is chosen: bias, penalties, tokens that are not allowed yet."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fly.request import SamplingParams
from services.engine.base import Work


def needs_processing(work: Work) -> bool:
    """Whether some output row's logits must be changed."""
    sampling = work.sampling
    return (
        bool(sampling.logit_bias)
        or _has_penalties(sampling)
        or (bool(sampling.stop_token_ids) and _first_response_index(work) < sampling.min_tokens)
    )


def process(logits: Tensor, work: Work) -> None:
    """Changes a sequence's output rows (outputs, vocabulary) in place.

    Row `i` sees the prefix that ends where its own position does, drafts included: repetition counts prompt
    and response, presence and frequency count the response (as vLLM does).
    """
    sampling = work.sampling
    if sampling.logit_bias:
        ids, biases = list(sampling.logit_bias), list(sampling.logit_bias.values())
        logits[:, ids] += torch.tensor(biases, dtype=logits.dtype, device=logits.device)
    if _has_penalties(sampling):
        _penalize(logits, work)
    num_masked = min(max(0, sampling.min_tokens - _first_response_index(work)), work.num_outputs)
    if num_masked and sampling.stop_token_ids:
        logits[:num_masked, list(sampling.stop_token_ids)] = float("-inf")


def excluded_drafts(logits: Tensor, drafts: Sequence[int]) -> tuple[bool, ...]:
    """Whether the processed logits (outputs, vocabulary) rule the draft of each row out."""
    index = torch.tensor(drafts, device=logits.device)
    drafted = logits.gather(1, index.clamp(min=0)[:, None])[:, 0]
    return tuple((drafted.isneginf() & (index >= 0)).tolist())


def _has_penalties(sampling: SamplingParams) -> bool:
    return (
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
    )


def _first_response_index(work: Work) -> int:
    """Response tokens before the one that the first output row chooses."""
    return work.first_position - work.prompt_length


def _penalize(logits: Tensor, work: Work) -> None:
    sampling = work.sampling
    first, last = work.first_position, work.start + len(work.tokens)
    history = torch.tensor(work.history[:last], device=logits.device)
    ids, places = torch.unique(history, return_inverse=True)
    seen = _counts(places, 0, first, work.num_outputs, len(ids))
    written = _counts(places, work.prompt_length, first, work.num_outputs, len(ids))
    values = logits[:, ids]
    penalty = sampling.repetition_penalty
    repeated = torch.where(values > 0, values / penalty, values * penalty)
    values = torch.where(seen > 0, repeated, values)
    values -= sampling.frequency_penalty * written + sampling.presence_penalty * (written > 0)
    logits[:, ids] = values


def _counts(places: Tensor, begin: int, first: int, num_rows: int, num_ids: int) -> Tensor:
    """How often each id occurs between `begin` and the end of each row's prefix, (rows, ids)."""
    counts = torch.zeros(num_rows, num_ids, device=places.device)
    counts[0] = torch.bincount(places[min(begin, first) : first], minlength=num_ids)
    later = torch.arange(first, first + num_rows - 1, device=places.device)
    rows = torch.arange(1, num_rows, device=places.device)
    is_counted = later >= begin
    counts[rows[is_counted], places[later[is_counted]]] = 1.0
    return counts.cumsum(0)
