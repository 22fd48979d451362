"""Noise in torch equals that in numpy, and races find the same winner as a full search."""

import numpy as np
import torch

from flyserve.core.noise import BLOCK, Domain, Floats, Words, noise_keys, token_noise
from flyserve.core.types import SparseDistribution
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
