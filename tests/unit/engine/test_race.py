"""Noise in torch equals that in numpy, and races find the same winner as a full search."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fly.noise import BLOCK, Domain, Floats, Words, noise_keys, token_noise
from fly.types import SparseDistribution
from services.engine.head.noise import block_noise_maxima, block_noise_winners, key_tensor
from services.engine.head.noise import token_noise as torch_noise
from services.engine.head.race import Draws, Entrants, distributions_tensor, first_entrants, race

CPU = torch.device("cpu")


def keys_of(seed: int, num_rows: int) -> Words:
    positions = np.arange(num_rows, dtype=np.uint64)
    return noise_keys(np.full_like(positions, seed), positions, np.full_like(positions, Domain.SHARED))


def draws_of(keys: Words, floor: float = -np.inf, temperature: float = 1.0) -> Draws:
    column = torch.ones(len(keys), 1, dtype=torch.float64)
    return Draws(key_tensor(keys, CPU)[:, None], column * temperature, column * floor)


def raced(logits: Floats, draws: Draws) -> list[int]:
    rows, vocabulary = logits.shape
    padded = np.full((rows, -(-vocabulary // BLOCK) * BLOCK), -np.inf, dtype=np.float32)
    padded[:, :vocabulary] = logits
    blocks = torch.from_numpy(padded).view(rows, -1, BLOCK)
    noise = block_noise_maxima(draws.keys, torch.arange(blocks.shape[1])[None])
    maxima, rows = blocks.amax(-1), torch.arange(len(blocks))
    entrants = first_entrants(blocks, maxima, rows, draws, noise)
    tokens: list[int] = race(blocks, maxima, rows, draws, noise, entrants).tolist()
    return tokens


def raced_among(ids: torch.Tensor, logits: torch.Tensor, draws: Draws) -> list[int]:
    tokens: list[int] = Entrants.of(ids, logits, draws).winners()[0][:, 0].tolist()
    return tokens


def searched(logits: Floats, keys: Words, temperature: float = 1.0) -> list[int]:
    ids = np.tile(np.arange(logits.shape[1]), (len(keys), 1))
    sums = logits.astype(np.float32).astype(np.float64) / temperature + token_noise(ids, keys)
    tokens: list[int] = sums.argmax(axis=1).tolist()
    return tokens


def test_noise_equals_that_in_numpy() -> None:
    keys, rng = keys_of(2**64 - 5, 60), np.random.default_rng(1)
    ids = rng.integers(0, 300_000, (60, 200))
    columns = key_tensor(keys, CPU)[:, None]
    noise = torch_noise(columns, torch.from_numpy(ids)).numpy()
    np.testing.assert_allclose(noise, token_noise(ids, keys), rtol=0, atol=4e-15)
    blocks = torch.arange(5)[None]
    winners = (blocks * BLOCK + block_noise_winners(columns, blocks)).numpy()
    np.testing.assert_allclose(block_noise_maxima(columns, blocks), token_noise(winners, keys), atol=4e-15)
    every = token_noise(np.tile(np.arange(5 * BLOCK), (60, 1)), keys).reshape(60, 5, BLOCK)
    assert (every.argmax(axis=2) + np.arange(5) * BLOCK == winners).all()


@given(st.integers(0, 2**64 - 1), st.integers(1, 3 * BLOCK), st.floats(0.1, 20), st.floats(0.05, 5))
def test_the_race_finds_the_largest_sum(seed: int, vocabulary: int, scale: float, temperature: float) -> None:
    logits = scale * np.sin(np.arange(1, vocabulary + 1) * 12.9898)[None]
    keys = keys_of(seed, 1)
    draws = draws_of(keys, temperature=temperature)
    ids, few = torch.arange(vocabulary)[None], torch.from_numpy(logits).float()
    expected = searched(logits, keys, temperature)
    assert raced(logits, draws) == raced_among(ids, few, draws) == expected


def test_what_is_subtracted_is_never_drawn_and_may_be_everything() -> None:
    logits, keys = np.zeros((300, 2)), keys_of(3, 300)
    halves = SparseDistribution((1, 0), (0.5, 0.5))
    subtracted = distributions_tensor([halves, SparseDistribution((0,), (1.0,))] * 150, CPU)
    base = draws_of(keys)
    draws = Draws(
        base.keys, base.temperatures, base.floors, torch.full_like(base.floors, np.log(2)), subtracted
    )
    assert raced(logits, draws) == [-1, 1] * 150
    ids = torch.arange(2).expand(300, 2)
    assert raced_among(ids, torch.zeros(300, 2), draws) == [-1, 1] * 150
