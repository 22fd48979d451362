"""Sampling filters of a few tokens in numpy: top-k, top-p and min-p as one lowest logit."""

import math

import numpy as np
from numpy.typing import NDArray

from flyserve.core.request import SamplingParams

Logits = NDArray[np.float32]


def lowest_kept(logits: Logits, sampling: SamplingParams) -> float:
    """Return the lowest logit of a token that may be drawn; -inf if the filters keep all.

    The logits are those of one position, (tokens,); the temperature is above 0. The filters and their order
    are those of `LogitCandidates`.
    """
    descending = np.sort(logits)[::-1]
    floor = -math.inf
    if 0 < sampling.top_k < len(logits):
        floor = float(descending[sampling.top_k - 1])
    if sampling.top_p < 1.0:
        total = log_total(logits, floor, sampling.temperature)
        kept = descending[descending >= floor].astype(np.float64)
        reached = np.exp(kept / sampling.temperature - total).cumsum()
        last = int(np.searchsorted(reached, sampling.top_p))
        floor = float(kept[last]) if last < len(kept) else floor
    if sampling.min_p > 0.0:
        floor = max(floor, float(descending[0]) + sampling.temperature * math.log(sampling.min_p))
    return floor


def log_total(logits: Logits, floor: float, temperature: float) -> float:
    """Return `logit / temperature` minus the log-probability, for the logits from `floor` on."""
    largest = float(logits.max())
    kept = logits[logits >= floor].astype(np.float64)
    return largest / temperature + math.log(np.exp((kept - largest) / temperature).sum())
