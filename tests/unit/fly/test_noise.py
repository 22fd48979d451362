"""Hashed noise: independent Gumbel variables, and a race that finds the same winner as all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fly.noise import BLOCK, race, token_noise, uniform


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.integers(1, 3 * BLOCK), st.floats(0.1, 20))
def test_the_race_finds_the_largest_sum(seed: int, position: int, vocabulary: int, scale: float) -> None:
    log_probs = scale * np.sin(np.arange(1, vocabulary + 1) * 12.9898)[None]
    winner = race(log_probs, np.array([seed], dtype=np.uint64), np.array([position], dtype=np.uint64))
    assert winner[0] == (log_probs[0] + token_noise(seed, position, vocabulary)).argmax()


def test_rows_do_not_depend_on_each_other() -> None:
    rng = np.random.default_rng(0)
    log_probs = rng.normal(size=(32, 1000)) * 3
    seeds, positions = rng.integers(0, 2**63, 32).astype(np.uint64), np.arange(32, dtype=np.uint64)
    together = race(log_probs, seeds, positions)
    alone = [race(log_probs[i : i + 1], seeds[i : i + 1], positions[i : i + 1])[0] for i in range(32)]
    assert together.tolist() == alone


def test_excluded_tokens_are_never_drawn() -> None:
    log_probs = np.full((200, 300), -np.inf)
    log_probs[:, [7, 130, 299]] = 0.0
    seeds = np.arange(200, dtype=np.uint64)
    assert set(race(log_probs, seeds, np.zeros(200, dtype=np.uint64)).tolist()) == {7, 130, 299}


def test_tokens_are_drawn_by_their_probability() -> None:
    probabilities = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])
    draws = 40_000
    log_probs = np.full((draws, 200), -np.inf)
    log_probs[:, [0, 1, 70, 71, 199]] = np.log(probabilities)
    winners = race(log_probs, np.full(draws, 5, dtype=np.uint64), np.arange(draws, dtype=np.uint64))
    observed = np.array([(winners == token).sum() for token in (0, 1, 70, 71, 199)])
    chi_square = ((observed - draws * probabilities) ** 2 / (draws * probabilities)).sum()
    assert chi_square < 18.47, "p > 0.001 at 4 degrees of freedom"


@pytest.mark.parametrize("statistic", ["values", "neighbours"])
def test_the_noise_is_gumbel_and_independent(statistic: str) -> None:
    noise = np.stack([token_noise(seed=9, position=p, vocabulary=2 * BLOCK) for p in range(400)])
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


def test_uniform_numbers_differ_by_domain_and_position() -> None:
    drawn = {uniform(seed, position, domain) for seed in (1, 2) for position in (3, 4) for domain in (16, 17)}
    assert len(drawn) == 8
    assert all(0 < number < 1 for number in drawn)
