"""Hashed Gumbel noise: the same for every process, device and batch, and cheap for large vocabularies.

The Gumbel-max trick draws a token as `argmax(log p + g)`. Here the noise `g` of a token is a hash of (seed,
position, domain, token id), so a drafter and a target that share a seed draw alike wherever their
distributions do (Daliri, Musco and Suresh, 2408.07978), and a token drawn once is drawn again after a
fail-over.

The noise is hashed from the top down: of every block of token ids first the largest value, distributed as
Gumbel(ln n), and the token that has it; the others are Gumbel variables truncated there. That is the
distribution of independent noise, and lets `race` skip blocks that cannot win.
"""

from collections.abc import Callable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Read = Callable[[Ints, Ints], Floats]
"""Told rows and as many block numbers; answers log p of those blocks' tokens, (n, BLOCK)."""

BLOCK = 64
"""Token ids per block."""
_LEADING = (1, 8)
"""Blocks of each row that a race reads first and second, before all that may still win."""


class Domain(IntEnum):
    """What a number is drawn for; numbers of different domains are independent."""

    SHARED = 1
    """The token, by drafter and target alike (coupling `shared_noise`)."""
    DRAFT = 2
    """The drafter's token (coupling `rejection`, as all that follow)."""
    ACCEPTANCE = 3
    """Whether the target accepts a draft."""
    RESIDUAL = 4
    """The target's token in place of a draft that it does not accept."""
    BONUS = 5
    """The target's token where there is no draft."""


_MAXIMUM, _WINNER, _TOKEN, _UNIFORM = (np.array([purpose], dtype=np.uint64) for purpose in (1, 2, 3, 4))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def noise_keys(seeds: Words, positions: Words, domains: Words) -> Words:
    """(rows,) what the noise of a row is hashed from: its seed, the position of its token, its domain."""
    return _mix(_mix(_mix(np.zeros_like(seeds), seeds), positions), domains)


def race(maxima: Floats, read: Read, keys: Words) -> Ints:
    """Draws one token per row by `argmax(log p + g)`, reading only the blocks that may hold it.

    Args:
        maxima: (rows, blocks) an upper bound of log p in each block; -inf where nothing can be drawn.
        read: Reads blocks; log p need not be normalised.
        keys: (rows,) of the noise.

    Returns:
        (rows,) token ids; -1 where nothing can be drawn.
    """
    active = np.flatnonzero((maxima > -np.inf).any(axis=0))
    bounds = _bounds(maxima[:, active], active.astype(np.uint64), keys)
    best, winners = np.full(len(keys), -np.inf), np.full(len(keys), -1)
    for num_leading in (*_LEADING, len(active)):
        rows, columns = _promising(bounds, best, num_leading)
        if not rows.size:
            break
        blocks = active[columns]
        sums = read(rows, blocks) + _block_noise(keys[rows], blocks.astype(np.uint64))
        places = sums.argmax(axis=1)
        values = sums[np.arange(len(rows)), places]
        leaders = _leaders(rows, values)
        leaders = leaders[values[leaders] > best[rows[leaders]]]
        best[rows[leaders]] = values[leaders]
        winners[rows[leaders]] = blocks[leaders] * BLOCK + places[leaders]
        bounds[rows, columns] = -np.inf
    return winners


def race_among(ids: Ints, log_probs: Floats, keys: Words) -> Ints:
    """As `race`, among the few tokens of each row: ids and log p are (rows, n); -inf is never drawn."""
    leading = (log_probs + token_noise(ids, keys)).argmax(axis=1)
    winners: Ints = ids[np.arange(len(ids)), leading]
    return winners


def token_noise(ids: Ints, keys: Words) -> Floats:
    """(rows, n) the noise of the tokens `ids`, (rows, n)."""
    blocks, within = np.divmod(ids.astype(np.uint64), np.uint64(BLOCK))
    maxima = _block_maxima(keys[:, None], blocks)
    drawn = _uniform(_mix(_mix(_mix(keys, _TOKEN)[:, None], blocks), within))
    return np.where(within == _block_winners(keys[:, None], blocks), maxima, _below(maxima, drawn))


def uniform(keys: Words) -> Floats:
    """(rows,) a number in (0, 1) for each key."""
    return _uniform(_mix(keys, _UNIFORM))


def _bounds(maxima: Floats, blocks: Words, keys: Words) -> Floats:
    """(rows, blocks) what no token of a block can exceed; hashed only for blocks that take part."""
    bounds = np.full(maxima.shape, -np.inf)
    rows, columns = np.nonzero(maxima > -np.inf)
    bounds[rows, columns] = maxima[rows, columns] + _block_maxima(keys[rows], blocks[columns])
    return bounds


def _promising(bounds: Floats, best: Floats, num_leading: int) -> tuple[Ints, Ints]:
    """Rows and columns of the bounds that may still win; of each row only those that lead."""
    is_promising = bounds > best[:, None]
    if num_leading < bounds.shape[1]:
        is_promising &= bounds >= np.partition(bounds, -num_leading, axis=1)[:, -num_leading, None]
    rows, columns = np.nonzero(is_promising)
    return rows, columns


def _leaders(rows: Ints, values: Floats) -> Ints:
    """Per row that occurs, the index of its largest value; rows ascend."""
    order = np.lexsort((values, rows))
    leaders: Ints = order[np.flatnonzero(np.diff(rows, append=-1))]
    return leaders


def _block_maxima(keys: Words, blocks: Words) -> Floats:
    """The largest noise of each block."""
    drawn = _uniform(_mix(_mix(keys, _MAXIMUM), blocks))
    maxima: Floats = np.log(BLOCK) - np.log(-np.log(drawn))
    return maxima


def _block_winners(keys: Words, blocks: Words) -> Words:
    """Which token of each block has its largest noise."""
    winners: Words = _mix(_mix(keys, _WINNER), blocks) % np.uint64(BLOCK)
    return winners


def _block_noise(keys: Words, blocks: Words) -> Floats:
    """(rows, BLOCK) the noise of every token in one block per row."""
    maxima = _block_maxima(keys, blocks)
    token_keys = _mix(_mix(keys, _TOKEN), blocks)
    drawn = _uniform(_mix(token_keys[:, None], np.arange(BLOCK, dtype=np.uint64)[None]))
    noise = _below(maxima[:, None], drawn)
    noise[np.arange(len(noise)), _block_winners(keys, blocks).astype(np.int64)] = maxima
    return noise


def _below(maxima: Floats, drawn: Floats) -> Floats:
    """Gumbel variables truncated at `maxima`."""
    noise: Floats = -np.log(np.exp(-maxima) - np.log(drawn))
    return noise


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
