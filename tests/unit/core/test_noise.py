"""Hashed noise: independent Gumbel variables."""

import numpy as np
import pytest

from flyserve.core.noise import (
    BLOCK,
    Domain,
    Floats,
    Ints,
    Words,
    noise_keys,
    race_among,
    token_noise,
    uniform,
)


def keys_of(seed: int, positions: Ints, domain: Domain = Domain.SHARED) -> Words:
    words = positions.astype(np.uint64)
    return noise_keys(np.full_like(words, seed), words, np.full_like(words, domain))


def all_noise(keys: Words, vocabulary: int) -> Floats:
    return token_noise(np.tile(np.arange(vocabulary), (len(keys), 1)), keys)


def test_tokens_are_drawn_by_their_probability() -> None:
    probabilities = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
    draws = 40_000
    ids = np.tile([0, 1, 70, 71, 199], (draws, 1))
    winners = race_among(ids, np.tile(np.log(probabilities), (draws, 1)), keys_of(5, np.arange(draws)))
    observed = np.array([(winners == token).sum() for token in (0, 1, 70, 71, 199)])
    chi_square = ((observed - draws * probabilities) ** 2 / (draws * probabilities)).sum()
    assert chi_square < 18.47, "p > 0.001 at 4 degrees of freedom"


@pytest.mark.parametrize("statistic", ["values", "neighbours"])
def test_the_noise_is_gumbel_and_independent(statistic: str) -> None:
    noise = all_noise(keys_of(9, np.arange(400)), 2 * BLOCK)
    cdf = np.exp(-np.exp(-noise))
    if statistic == "values":
        expected = (np.arange(cdf.size) + 0.5) / cdf.size
        assert np.abs(np.sort(cdf.reshape(-1)) - expected).max() < 1.95 / np.sqrt(cdf.size), (
            "Kolmogorov, 0.001"
        )
    else:
        for left, right in [(cdf[:, :-1], cdf[:, 1:]), (cdf[:-1], cdf[1:]), (cdf[:, :BLOCK], cdf[:, BLOCK:])]:
            correlation = np.corrcoef(left.reshape(-1), right.reshape(-1))[0, 1]
            assert abs(correlation) < 4 / np.sqrt(left.size)


def test_domains_are_independent() -> None:
    positions = np.arange(20_000)
    drawn = [uniform(keys_of(4, positions, domain)) for domain in Domain]
    noise = [all_noise(keys_of(4, positions[:2000], domain), BLOCK).reshape(-1) for domain in Domain]
    for numbers in (drawn, noise):
        correlations = np.abs(np.corrcoef(np.stack(numbers)) - np.eye(len(Domain)))
        assert correlations.max() < 4.5 / np.sqrt(numbers[0].size)


def test_uniform_numbers_differ_by_seed_and_position() -> None:
    drawn = np.concatenate([uniform(keys_of(seed, np.arange(100))) for seed in (1, 2)])
    assert len(set(drawn.tolist())) == 200
    assert drawn.min() > 0 and drawn.max() < 1
