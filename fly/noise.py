"""Hashed Gumbel noise: the same for every process, device and batch, and cheap for large vocabularies.

The Gumbel-max trick draws a token as `argmax(log p + g)`. Here the noise `g` of a token is a hash of (seed,
position, token id), so a drafter and a target that share a seed draw alike wherever their distributions do
(Daliri, Musco and Suresh, 2408.07978), and a token drawn once is drawn again after a fail-over.

The noise is hashed from the top down: of every block of token ids first the largest value, distributed as
Gumbel(ln n), and the token that has it; the others are Gumbel variables truncated there. That is the
distribution of independent noise, and lets `race` skip blocks that cannot win.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BLOCK = 64
"""Token ids per block."""

_MAXIMUM, _WINNER, _TOKEN = (np.array([domain], dtype=np.uint64) for domain in (1, 2, 3))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def race(log_probs: Floats, seeds: Words, positions: Words) -> Ints:
    """Draws one token per row by `argmax(log p + g)`.

    Args:
        log_probs: (rows, vocabulary), not necessarily normalised, at least one finite per row.
        seeds: (rows,).
        positions: (rows,) of the drawn token in its sequence.

    Returns:
        (rows,) token ids.
    """
    rows, vocabulary = log_probs.shape
    num_blocks = -(-vocabulary // BLOCK)
    padded = np.full((rows, num_blocks * BLOCK), -np.inf)
    padded[:, :vocabulary] = log_probs
    blocks = padded.reshape(rows, num_blocks, BLOCK)
    keys = _keys(seeds, positions)
    bounds = blocks.max(axis=2) + _block_maxima(keys[:, None], np.arange(num_blocks, dtype=np.uint64)[None])
    best, winners = np.full(rows, -np.inf), np.zeros(rows, dtype=np.int64)
    running = np.arange(rows)
    while running.size:
        leading = bounds[running].argmax(axis=1)
        values = blocks[running, leading] + _block_noise(keys[running], leading.astype(np.uint64))
        within = values.argmax(axis=1)
        value = values[np.arange(running.size), within]
        better = value > best[running]
        best[running[better]] = value[better]
        winners[running[better]] = leading[better] * BLOCK + within[better]
        bounds[running, leading] = -np.inf
        running = running[bounds[running].max(axis=1) > best[running]]
    return winners


def token_noise(seed: int, position: int, vocabulary: int) -> Floats:
    """(vocabulary,) the noise of every token at one position; `race` finds its winner by short cuts."""
    num_blocks = -(-vocabulary // BLOCK)
    keys = _keys(np.array([seed], dtype=np.uint64), np.array([position], dtype=np.uint64))
    noise = _block_noise(np.repeat(keys, num_blocks), np.arange(num_blocks, dtype=np.uint64))
    return noise.reshape(-1)[:vocabulary]


def uniform(seed: int, position: int, domain: int) -> float:
    """A number in (0, 1) for one purpose at one position; `domain` is at least 16."""
    keys = _keys(np.array([seed], dtype=np.uint64), np.array([position], dtype=np.uint64))
    return float(_uniform(_mix(keys, np.array([domain], dtype=np.uint64)))[0])


def _block_maxima(keys: Words, blocks: Words) -> Floats:
    """The largest noise of each block."""
    drawn = _uniform(_mix(_mix(keys, _MAXIMUM), blocks))
    maxima: Floats = np.log(BLOCK) - np.log(-np.log(drawn))
    return maxima


def _block_noise(keys: Words, blocks: Words) -> Floats:
    """(rows, BLOCK) the noise of every token in one block per row."""
    maxima = _block_maxima(keys, blocks)
    winners = _mix(_mix(keys, _WINNER), blocks) % np.uint64(BLOCK)
    token_keys = _mix(_mix(keys, _TOKEN), blocks)
    drawn = _uniform(_mix(token_keys[:, None], np.arange(BLOCK, dtype=np.uint64)[None]))
    noise: Floats = -np.log(np.exp(-maxima)[:, None] - np.log(drawn))
    noise[np.arange(len(noise)), winners.astype(np.int64)] = maxima
    return noise


def _keys(seeds: Words, positions: Words) -> Words:
    return _mix(_mix(np.zeros_like(seeds), seeds), positions)


def _mix(state: Words, value: Words) -> Words:
    """One step of a 64-bit hash: the finalizer of splitmix64."""
    mixed = state + (value + np.uint64(1)) * _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    result: Words = mixed ^ (mixed >> np.uint64(31))
    return result


def _uniform(words: Words) -> Floats:
    """In (0, 1), never 0 or 1: 52 bits and a half."""
    drawn: Floats = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return drawn
