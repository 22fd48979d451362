"""Sampling of one row as a reference: whole rows in plain numpy, no bounds and no shortcuts."""

import math
from collections.abc import Sequence

import numpy as np

from flyserve.core.limits import MOST_PROPOSED
from flyserve.core.noise import Domain, Floats, Words, noise_keys, token_noise, uniform
from flyserve.core.request import SamplingParams
from flyserve.core.types import Coupling, SparseDistribution
from services.engine.base import ForwardInput
from services.engine.head.filters import Logits


def reference_floor(logits: Logits, sampling: SamplingParams) -> float:
    """Return the lowest logit that temperature, top-k, top-p and min-p keep, in this order."""
    descending, floor = np.sort(logits)[::-1], -math.inf
    if 0 < sampling.top_k < len(logits):
        floor = float(descending[sampling.top_k - 1])
    if sampling.top_p < 1.0:
        kept = descending[descending >= floor].astype(np.float64)
        weights = np.exp((kept - kept[0]) / sampling.temperature)
        last = int(np.searchsorted((weights / weights.sum()).cumsum(), sampling.top_p))
        floor = float(kept[last]) if last < len(kept) else floor
    if sampling.min_p > 0.0:
        floor = max(floor, float(descending[0]) + sampling.temperature * math.log(sampling.min_p))
    return floor


def reference_logits(logits: Logits, item: ForwardInput, row: int) -> Logits:
    """Return the processed logits of one output row: bias, penalties, masked stop tokens."""
    sampling, position = item.sampling, item.first_position + row
    processed = logits.copy()
    for token, bias in sampling.logit_bias.items():
        processed[token] += np.float32(bias)
    for token in set(item.history[:position]):
        written = np.float32(list(item.history[item.prompt_length : position]).count(token))
        value, penalty = processed[token], np.float32(sampling.repetition_penalty)
        value = value / penalty if value > 0 else value * penalty
        subtracted = np.float32(sampling.frequency_penalty) * written
        subtracted += np.float32(sampling.presence_penalty) * np.float32(written > 0)
        processed[token] = value - subtracted
    if position - item.prompt_length < sampling.min_tokens:
        processed[list(sampling.stop_token_ids)] = -np.inf
    return processed


def reference_choice(logits: Logits, item: ForwardInput, row: int) -> tuple[int, bool]:
    """Return the token that a row of processed logits draws, and whether its draft is excluded."""
    sampling, draft = item.sampling, item.drafts[row]
    floor = reference_floor(logits, sampling)
    scaled = np.where(logits >= floor, logits.astype(np.float64) / sampling.temperature, -np.inf)
    is_excluded = draft >= 0 and bool(scaled[draft] == -np.inf)
    if sampling.coupling is Coupling.SHARED_NOISE:
        return _drawn(scaled, item, row, Domain.SHARED), is_excluded
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    if item.is_proposing:
        leading = np.argsort(-scaled, kind="stable")[:MOST_PROPOSED]
        few = np.full_like(scaled, -np.inf)
        few[leading] = scaled[leading]
        return _drawn(few, item, row, Domain.DRAFT), is_excluded
    if draft < 0:
        return _drawn(scaled, item, row, Domain.BONUS), is_excluded
    q = _dense(item.proposals, row, draft, len(logits))
    if uniform(_keys(item, row, Domain.ACCEPTANCE))[0] * q[draft] < p[draft]:
        return draft, is_excluded
    with np.errstate(divide="ignore"):
        drawn = _drawn(np.log(np.maximum(p - q, 0.0)), item, row, Domain.RESIDUAL)
    return drawn if drawn >= 0 else draft, is_excluded


def _dense(proposals: Sequence[SparseDistribution], row: int, draft: int, vocab_size: int) -> Floats:
    """Return the distribution that a draft was drawn from, as one number per token."""
    q = np.zeros(vocab_size)
    proposal = proposals[row] if row < len(proposals) else SparseDistribution((draft,), (1.0,))
    q[list(proposal.ids)] = proposal.probabilities
    return q


def _drawn(log_p: Floats, item: ForwardInput, row: int, domain: Domain) -> int:
    """Return the token with the largest sum of log-probability and noise; -1 if all are excluded."""
    sums = log_p + token_noise(np.arange(len(log_p))[None], _keys(item, row, domain))[0]
    return int(sums.argmax()) if sums.max() > -np.inf else -1


def _keys(item: ForwardInput, row: int, domain: Domain) -> Words:
    words = np.array([[item.sampling.seed], [item.first_position + row], [domain]], dtype=np.uint64)
    return noise_keys(*words)
