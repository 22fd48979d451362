"""The filters against transformers' own."""

import itertools
import math

import numpy as np
import pytest
import torch

from fly.request import SamplingParams
from services.engine.head.filters import Logits, log_total, lowest_kept

CASES = [
    SamplingParams(temperature=t, top_k=k, top_p=p, min_p=m)
    for t, k, p, m in itertools.product((0.3, 1.0, 1.7), (0, 1, 40), (1.0, 0.9, 0.2), (0.0, 0.02, 1.0))
]


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


@pytest.mark.parametrize("top_p", [0.5, 0.999, 0.9999999])
def test_a_nucleus_of_a_flat_distribution_is_large(top_p: float) -> None:
    logits = drawn_logits(40_000) * np.float32(0.1)
    sampling = SamplingParams(temperature=1.0, top_p=top_p)
    kept = int((logits >= lowest_kept(logits, sampling)).sum())
    assert abs(kept - int(warped(logits, sampling).isfinite().sum())) <= 1


def test_equal_logits_are_kept_together() -> None:
    logits = np.array([1.0, 2.0, 2.0, 2.0, 0.0], dtype=np.float32)
    for sampling in (SamplingParams(temperature=1.0, top_k=1), SamplingParams(temperature=1.0, top_p=0.1)):
        assert (logits >= lowest_kept(logits, sampling)).tolist() == [False, True, True, True, False]


def test_masked_logits_are_never_kept() -> None:
    logits = drawn_logits(100)
    logits[:60] = -np.inf
    floor = lowest_kept(logits, SamplingParams(temperature=1.0, top_p=0.99999, top_k=50))
    assert floor > -math.inf


def test_without_filters_all_tokens_are_kept() -> None:
    assert lowest_kept(drawn_logits(), SamplingParams(temperature=0.7)) == -math.inf
    assert lowest_kept(drawn_logits(10), SamplingParams(temperature=0.7, top_k=50)) == -math.inf
