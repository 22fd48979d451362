"""Hashed Gumbel noise: the same in every process, device and batch, and cheap for large vocabularies.

The Gumbel-max trick draws a token as `argmax(log p + g)`. Here the noise `g` of a token is a hash of (seed,
position, domain, token id). A drafter and a target that share a seed therefore draw the same token where
their distributions are alike (Daliri, Musco and Suresh, arXiv 2408.07978), and after a fail-over the same
token is drawn again.

The noise is hashed from the top down. For each block of token ids the largest value comes first, distributed
as Gumbel(ln n), and the token that has it; the other tokens have Gumbel variables truncated at that value.
The result has the distribution of independent noise, and a race over a large vocabulary can skip blocks that
cannot win (`services/engine/head/race.py`, with the same hash in torch).
"""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BLOCK = 64
"""Token ids per block."""


class Domain(IntEnum):
    """The purpose of a random number; numbers of different domains are independent."""

    SHARED = 1
    """The token, by drafter and target alike (coupling `shared_noise`)."""
    DRAFT = 2
    """The drafter's token (coupling `rejection`, as for all domains below)."""
    ACCEPTANCE = 3
    """The target's decision to accept a draft token."""
    RESIDUAL = 4
    """The target's token in place of a rejected draft token."""
    BONUS = 5
    """The target's token where there is no draft token."""


class Purpose(IntEnum):
    """A use of a key."""

    MAXIMUM = 1
    """The largest noise of a block."""
    WINNER = 2
    """The token of a block that has it."""
    TOKEN = 3
    """The noise of the other tokens."""
    UNIFORM = 4
    """A uniform number."""


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)


def noise_keys(seeds: Words, positions: Words, domains: Words) -> Words:
    """Return (rows,) keys of the noise, hashed from each row's seed, token position and domain."""
    return _mix(_mix(_mix(np.zeros_like(seeds), seeds), positions), domains)


def race_among(ids: Ints, log_probs: Floats, keys: Words) -> Ints:
    """Draw one token per row by `argmax(log p + g)`: ids and log p are (rows, n); -inf excludes a token.

    log p need not be normalised.
    """
    leading = (log_probs + token_noise(ids, keys)).argmax(axis=1)
    winners: Ints = ids[np.arange(len(ids)), leading]
    return winners


def token_noise(ids: Ints, keys: Words) -> Floats:
    """Return the (rows, n) noise of the tokens `ids`, (rows, n)."""
    blocks, within = np.divmod(ids.astype(np.uint64), np.uint64(BLOCK))
    maxima = _block_maxima(keys[:, None], blocks)
    drawn = _uniform(_mix(_mix(_mix(keys, _word(Purpose.TOKEN))[:, None], blocks), within))
    return np.where(within == _block_winners(keys[:, None], blocks), maxima, _below(maxima, drawn))


def uniform(keys: Words) -> Floats:
    """Return (rows,) uniform numbers in (0, 1), one per key."""
    return _uniform(_mix(keys, _word(Purpose.UNIFORM)))


def _block_maxima(keys: Words, blocks: Words) -> Floats:
    """Return the largest noise of each block."""
    drawn = _uniform(_mix(_mix(keys, _word(Purpose.MAXIMUM)), blocks))
    maxima: Floats = np.log(BLOCK) - np.log(-np.log(drawn))
    return maxima


def _block_winners(keys: Words, blocks: Words) -> Words:
    """Return the token, within each block, that has the largest noise."""
    winners: Words = _mix(_mix(keys, _word(Purpose.WINNER)), blocks) % np.uint64(BLOCK)
    return winners


def _below(maxima: Floats, drawn: Floats) -> Floats:
    """Return Gumbel variables truncated at `maxima`."""
    noise: Floats = -np.log(np.exp(-maxima) - np.log(drawn))
    return noise


def _mix(state: Words, value: Words) -> Words:
    """Mix a value into a 64-bit hash by the finalizer of splitmix64."""
    mixed = state + (value + np.uint64(1)) * GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * MIX_2
    result: Words = mixed ^ (mixed >> np.uint64(31))
    return result


def _word(purpose: Purpose) -> Words:
    return np.array([purpose], dtype=np.uint64)


def _uniform(words: Words) -> Floats:
    """Return numbers in (0, 1), never 0 or 1, from the upper 52 bits."""
    drawn: Floats = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return drawn
