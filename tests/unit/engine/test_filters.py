"""The filters against transformers' own."""

import itertools
import math

import numpy as np
import pytest
import torch

from flyserve.core.noise import BLOCK
from flyserve.core.request import SamplingParams
from services.engine.head.filters import Logits, log_total, lowest_kept
from services.engine.head.logit_candidates import LogitCandidates

CASES = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
    for t, k, p, m in itertools.product((0.3, 1.0, 1.7), (0, 1, 40), (1.0, 0.9, 0.2), (0.0, 0.02, 1.0))
]

ROW = np.array([0])


def drawn_logits(vocabulary: int = 3000, seed: int = 0) -> Logits:
    return np.random.default_rng(seed).normal(size=vocabulary).astype(np.float32) * 3


def warped(logits: Logits, sampling: SamplingParams) -> torch.Tensor:
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    scores = torch.from_numpy(logits.astype(np.float64))[None]
    warpers = [TemperatureLogitsWarper(sampling.temperature)]
    warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    warpers += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p else []
    for warper in warpers:
        scores = warper(None, scores)
    return scores[0]


@pytest.mark.parametrize("sampling", CASES, ids=str)
def test_kept_tokens_equal_those_of_transformers(sampling: SamplingParams) -> None:
    logits = drawn_logits()
    expected = warped(logits, sampling)
    floor = lowest_kept(logits, sampling)
    np.testing.assert_array_equal(logits >= floor, expected.isfinite().numpy())
    total = log_total(logits, floor, sampling.temperature)
    kept = logits >= floor
    np.testing.assert_allclose(
        logits[kept].astype(np.float64) / sampling.temperature - total,
        expected.log_softmax(-1).numpy()[kept],
        atol=1e-5,
    )


def candidates_of(logits: Logits, sampling: SamplingParams) -> LogitCandidates:
    """Return the settled candidates of a real model with a row of logits, padded to whole blocks."""
    width = -(-len(logits) // BLOCK) * BLOCK
    blocks = torch.full((1, width), -math.inf)
    blocks[0, : len(logits)] = torch.from_numpy(logits)
    blocks = blocks.view(1, -1, BLOCK)
    scratch = torch.empty(2, 1, width)
    candidates = LogitCandidates(blocks, blocks.amax(-1), len(logits), [sampling], scratch, False)
    candidates.probabilities(ROW, np.array([0]))
    return candidates


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.999, 0.9999999])
@pytest.mark.parametrize("rounding", [0, 0.5])
def test_a_search_finds_the_nucleus_of_a_flat_distribution(top_p: float, rounding: float) -> None:
    logits = drawn_logits(40_000) * np.float32(0.3)
    logits = np.round(logits / rounding).astype(np.float32) * np.float32(rounding) if rounding else logits
    sampling = SamplingParams(temperature=1.0, top_p=top_p)
    candidates = candidates_of(logits, sampling)
    is_kept = [not candidates.excludes(ROW, np.array([token]))[0] for token in range(0, 40_000, 7)]
    floor = lowest_kept(logits, sampling)
    differ = np.flatnonzero(np.array(is_kept) != (logits[::7] >= floor))
    assert len(differ) <= (1 if rounding == 0 else 0) or top_p > 0.999


@pytest.mark.parametrize("level", [0.0, 1e-30, 3.0])
def test_a_nucleus_that_ends_among_many_equal_logits_keeps_them_all(level: float) -> None:
    logits = np.full(1000, level - 1.0, dtype=np.float32)
    logits[:100], logits[100:400] = level + 1.0, level
    sampling = SamplingParams(temperature=0.3, top_p=0.97)
    assert lowest_kept(logits, sampling) == np.float32(level)
    candidates = candidates_of(logits, sampling)
    assert not candidates.excludes(ROW, np.array([250]))[0] and candidates.excludes(ROW, np.array([500]))[0]
    assert candidates.probabilities(ROW, np.array([250]))[0] > 0
