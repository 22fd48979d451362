"""Sampling filters: top-k, top-p and min-p as one lowest logit per row."""

import math

import numpy as np
from numpy.typing import NDArray

from fly.noise import Floats
from fly.request import SamplingParams

Logits = NDArray[np.float32]

_NUCLEI = (1024, 16384)
"""Numbers of most likely logits to search for the nucleus, before all logits are sorted."""


def lowest_kept(logits: Logits, sampling: SamplingParams) -> float:
    """Return the lowest logit of a token that may be drawn; -inf if the filters keep all.

    The logits are those of one position, (vocabulary,), processed, and are not changed; the temperature is
    above 0. The order is that of transformers: temperature, top-k, top-p, min-p; the nucleus is that of the
    top-k tokens. (vLLM applies min-p first, so its nucleus is that of the tokens kept by min-p.) Ties with
    the last token kept are kept too.
    """
    floor = -math.inf
    if 0 < sampling.top_k < len(logits):
        floor = float(np.partition(logits, -sampling.top_k)[-sampling.top_k])
    if sampling.top_p < 1.0:
        floor = max(floor, _nucleus(logits, floor, sampling))
    if sampling.min_p > 0.0:
        floor = max(floor, float(logits.max()) + sampling.temperature * math.log(sampling.min_p))
    return floor


def log_total(logits: Logits, floor: float, temperature: float) -> float:
    """Return `logit / temperature` minus the log-probability, for the logits from `floor` on."""
    largest = float(logits.max())
    kept = logits if floor == -math.inf else logits[logits >= floor]
    total = np.exp((kept - np.float32(largest)) / np.float32(temperature)).sum(dtype=np.float64)
    return largest / temperature + math.log(total)


def log_probabilities(logits: Logits, floors: Floats, temperatures: Floats, totals: Floats) -> Floats:
    """Return log-probabilities (rows, tokens), -inf for excluded tokens; other arguments are (rows, 1)."""
    return np.where(logits >= floors, logits / temperatures - totals, -np.inf)


def _nucleus(logits: Logits, floor: float, sampling: SamplingParams) -> float:
    """Return the lowest logit of the smallest set of most likely tokens with probability top_p."""
    total = log_total(logits, floor, sampling.temperature)
    for size in (*_NUCLEI, len(logits)):
        largest = np.sort(np.partition(logits, -size)[-size:] if size < len(logits) else logits)[::-1]
        kept = largest[largest >= floor].astype(np.float64)
        reached = np.exp(kept / sampling.temperature - total).cumsum()
        last = int(np.searchsorted(reached, sampling.top_p))
        if last < len(kept):
            return float(kept[last])
    return floor
