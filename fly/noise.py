"""Hashed Gumbel noise: the same in every process, device and batch, and cheap for large vocabularies.

The Gumbel-max trick draws a token as `argmax(log p + g)`. Here the noise `g` of a token is a hash of (seed,
position, domain, token id). A drafter and a target that share a seed therefore draw the same token where
their distributions are alike (Daliri, Musco and Suresh, arXiv 2408.07978), and after a fail-over the same
token is drawn again.

The noise is hashed from the top down. For each block of token ids the largest value comes first, distributed
as Gumbel(ln n), and the token that has it; the other tokens have Gumbel variables truncated at that value.
The result has the distribution of independent noise, and `race` can skip blocks that cannot win.
"""

from collections.abc import Callable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Read = Callable[[Ints, Ints], Floats]
"""Read log p of blocks: (n,) rows and (n,) block numbers to (n, BLOCK) values."""

BLOCK = 64
"""Token ids per block."""
_LEADING = (1, 8)
"""Number of leading blocks per row that a race reads in its first and second pass; then all candidates."""


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


_MAXIMUM, _WINNER, _TOKEN, _UNIFORM = (np.array([purpose], dtype=np.uint64) for purpose in (1, 2, 3, 4))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def noise_keys(seeds: Words, positions: Words, domains: Words) -> Words:
    """Return (rows,) keys of the noise, hashed from each row's seed, token position and domain."""
    return _mix(_mix(_mix(np.zeros_like(seeds), seeds), positions), domains)


def race(maxima: Floats, read: Read, keys: Words) -> Ints:
    """Draw one token per row by `argmax(log p + g)`; read only the blocks that may contain it.

    Args:
        maxima: (rows, blocks) upper bound of log p in each block; -inf excludes a block.
        read: Function that reads blocks; log p need not be normalised.
        keys: (rows,) keys of the noise.

    Returns:
        (rows,) token ids; -1 for a row without any possible token.
    """
    active = np.flatnonzero((maxima > -np.inf).any(axis=0))
    bounds = _bounds(maxima[:, active], active.astype(np.uint64), keys)
    best, winners = np.full(len(keys), -np.inf), np.full(len(keys), -1)
    for num_leading in (*_LEADING, len(active)):
        rows, columns = _candidates(bounds, best, num_leading)
        if not rows.size:
            break
        blocks = active[columns]
        sums = read(rows, blocks) + _block_noise(keys[rows], blocks.astype(np.uint64))
        offsets = sums.argmax(axis=1)
        values = sums[np.arange(len(rows)), offsets]
        leaders = _leaders(rows, values)
        leaders = leaders[values[leaders] > best[rows[leaders]]]
        best[rows[leaders]] = values[leaders]
        winners[rows[leaders]] = blocks[leaders] * BLOCK + offsets[leaders]
        bounds[rows, columns] = -np.inf
    return winners


def race_among(ids: Ints, log_probs: Floats, keys: Words) -> Ints:
    """Draw as `race` does among the given tokens: ids and log p are (rows, n); -inf excludes a token."""
    leading = (log_probs + token_noise(ids, keys)).argmax(axis=1)
    winners: Ints = ids[np.arange(len(ids)), leading]
    return winners


def token_noise(ids: Ints, keys: Words) -> Floats:
    """Return the (rows, n) noise of the tokens `ids`, (rows, n)."""
    blocks, within = np.divmod(ids.astype(np.uint64), np.uint64(BLOCK))
    maxima = _block_maxima(keys[:, None], blocks)
    drawn = _uniform(_mix(_mix(_mix(keys, _TOKEN)[:, None], blocks), within))
    return np.where(within == _block_winners(keys[:, None], blocks), maxima, _below(maxima, drawn))


def uniform(keys: Words) -> Floats:
    """Return (rows,) uniform numbers in (0, 1), one per key."""
    return _uniform(_mix(keys, _UNIFORM))


def _bounds(maxima: Floats, blocks: Words, keys: Words) -> Floats:
    """Return (rows, blocks) upper bounds of log p + g; only blocks with a finite maximum are hashed."""
    bounds = np.full(maxima.shape, -np.inf)
    rows, columns = np.nonzero(maxima > -np.inf)
    bounds[rows, columns] = maxima[rows, columns] + _block_maxima(keys[rows], blocks[columns])
    return bounds


def _candidates(bounds: Floats, best: Floats, num_leading: int) -> tuple[Ints, Ints]:
    """Return rows and columns of the bounds above the best value; per row the `num_leading` largest."""
    is_candidate = bounds > best[:, None]
    if num_leading < bounds.shape[1]:
        is_candidate &= bounds >= np.partition(bounds, -num_leading, axis=1)[:, -num_leading, None]
    rows, columns = np.nonzero(is_candidate)
    return rows, columns


def _leaders(rows: Ints, values: Floats) -> Ints:
    """Return, for each distinct row, the index of its largest value; `rows` ascend."""
    order = np.lexsort((values, rows))
    leaders: Ints = order[np.flatnonzero(np.diff(rows, append=-1))]
    return leaders


def _block_maxima(keys: Words, blocks: Words) -> Floats:
    """Return the largest noise of each block."""
    drawn = _uniform(_mix(_mix(keys, _MAXIMUM), blocks))
    maxima: Floats = np.log(BLOCK) - np.log(-np.log(drawn))
    return maxima


def _block_winners(keys: Words, blocks: Words) -> Words:
    """Return the token, within each block, that has the largest noise."""
    winners: Words = _mix(_mix(keys, _WINNER), blocks) % np.uint64(BLOCK)
    return winners


def _block_noise(keys: Words, blocks: Words) -> Floats:
    """Return the (rows, BLOCK) noise of every token in one block per row."""
    maxima = _block_maxima(keys, blocks)
    token_keys = _mix(_mix(keys, _TOKEN), blocks)
    drawn = _uniform(_mix(token_keys[:, None], np.arange(BLOCK, dtype=np.uint64)[None]))
    noise = _below(maxima[:, None], drawn)
    noise[np.arange(len(noise)), _block_winners(keys, blocks).astype(np.int64)] = maxima
    return noise


def _below(maxima: Floats, drawn: Floats) -> Floats:
    """Return Gumbel variables truncated at `maxima`."""
    noise: Floats = -np.log(np.exp(-maxima) - np.log(drawn))
    return noise


def _mix(state: Words, value: Words) -> Words:
    """Mix a value into a 64-bit hash by the finalizer of splitmix64."""
    mixed = state + (value + np.uint64(1)) * _GOLDEN
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    result: Words = mixed ^ (mixed >> np.uint64(31))
    return result


def _uniform(words: Words) -> Floats:
    """Return numbers in (0, 1), never 0 or 1, from the upper 52 bits."""
    drawn: Floats = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return drawn
