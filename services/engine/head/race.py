"""Gumbel races over logits in torch: the token with the largest sum of log-probability and noise, per row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fly.noise import BLOCK
from fly.types import SparseDistribution
from services.engine.head.noise import block_noise_maxima, block_noise_winners, token_noise


@dataclass(frozen=True, slots=True)
class Draws:
    """Tokens to draw, one per row; all columns are (rows, 1) unless noted.

    Attributes:
        keys: Keys of the noise, int64.
        temperatures: Temperatures of the softmax, float64.
        floors: Logits below these are excluded, float64.
        totals: Logarithms of the sums of `exp(logit / temperature)`, float64; 0 where nothing is subtracted.
        subtracted: Distributions q as ascending ids and their probabilities, both (rows, any): the token is
            drawn from (p - q)+ instead of p; None draws all tokens from p.
    """

    keys: Tensor
    temperatures: Tensor
    floors: Tensor
    totals: Tensor
    subtracted: tuple[Tensor, Tensor] | None = None

    def take(self, rows: Tensor) -> "Draws":
        """Return the draws of some rows."""
        columns = (self.keys[rows], self.temperatures[rows], self.floors[rows], self.totals[rows])
        subtracted = self.subtracted and (self.subtracted[0][rows], self.subtracted[1][rows])
        return Draws(*columns, subtracted)

    def log_probabilities(self, logits: Tensor, ids: Tensor) -> Tensor:
        """Return the logarithm of p or (p - q)+ of tokens, (rows, n); -inf excludes a token."""
        log_p = self.bounds(logits)
        if self.subtracted is None:
            return log_p
        listed, probabilities = self.subtracted
        places = torch.searchsorted(listed, ids.contiguous()).clamp_(max=listed.shape[1] - 1)
        q = torch.where(listed.gather(1, places) == ids, probabilities.gather(1, places), 0.0)
        return torch.where(q > 0, (log_p.exp() - q).clamp_(min=0.0).log(), log_p)

    def bounds(self, logits: Tensor) -> Tensor:
        """Return the logarithm of p, which bounds that of (p - q)+."""
        log_p = logits / self.temperatures - self.totals
        return log_p.masked_fill_(logits < self.floors, -torch.inf)


def distributions_tensor(
    distributions: Sequence[SparseDistribution | None], device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """Return ascending ids, padded at the end, and probabilities of distributions; None if there is none."""
    width = max((len(each.ids) for each in distributions if each is not None), default=0)
    if width == 0:
        return None
    ids = torch.full((len(distributions), width), torch.iinfo(torch.int64).max)
    probabilities = torch.zeros(len(distributions), width, dtype=torch.float64)
    for row, each in enumerate(distributions):
        if each is not None:
            ids[row, : len(each.ids)], order = torch.tensor(each.ids).sort()
            probabilities[row, : len(each.ids)] = torch.tensor(each.probabilities, dtype=torch.float64)[order]
    return ids.to(device), probabilities.to(device)


def race_among(ids: Tensor, logits: Tensor, draws: Draws) -> Tensor:
    """Draw one of the tokens `ids` per row, (rows, n); -1 for a row without any possible token."""
    log_p = draws.log_probabilities(logits, ids)
    best, leading = (log_p + token_noise(draws.keys, ids)).max(-1, keepdim=True)
    return torch.where(best > -torch.inf, ids.gather(1, leading), -1)[:, 0]


@dataclass(frozen=True, slots=True)
class BlockNoise:
    """Largest noise of each block, and the place in the block of the token that has it: (rows, blocks)."""

    maxima: Tensor
    places: Tensor

    @classmethod
    def of(cls, keys: Tensor, num_blocks: int) -> "BlockNoise":
        numbers = torch.arange(num_blocks, device=keys.device)[None]
        return cls(block_noise_maxima(keys, numbers), block_noise_winners(keys, numbers))

    def take(self, rows: Tensor) -> "BlockNoise":
        """Return the noise of some rows."""
        return BlockNoise(self.maxima[rows], self.places[rows])


def race(blocks: Tensor, maxima: Tensor, rows: Tensor, draws: Draws, noise: BlockNoise) -> Tensor:
    """Draw one token per row from all its logits; read only the blocks that may contain it.

    `blocks` are logits, (any, blocks, BLOCK), and `maxima` the largest of each block, (any, blocks); `rows`,
    (rows,), are those of the draws. Returns token ids, -1 for a row without any possible token.

    The result is exact. Each block's largest noise and the token that has it cost one hash, so the best sum
    among these tokens comes first; it is the winner's for most rows. No token of a block exceeds the sum of
    the block's largest logit (as a log-probability) and the block's largest noise, because rounding keeps the
    order of numbers. So only blocks are read whose bound exceeds the best sum, and of these only the tokens
    get noise whose own log-probability and the block's largest noise exceed it.
    """
    num_blocks = blocks.shape[1]
    ids = torch.arange(0, num_blocks * BLOCK, BLOCK, device=rows.device) + noise.places
    sums = draws.log_probabilities(blocks.view(-1)[rows[:, None] * (num_blocks * BLOCK) + ids], ids).add_(
        noise.maxima
    )
    best, places = sums.max(-1, keepdim=True)
    winners = torch.where(best > -torch.inf, ids.gather(1, places), -1)[:, 0]
    unread, columns = (draws.bounds(maxima[rows]).add_(noise.maxima) > best).nonzero(as_tuple=True)
    if unread.numel():
        values = blocks.view(-1, BLOCK).index_select(0, rows[unread] * num_blocks + columns)
        reached = draws.take(unread).bounds(values).add_(noise.maxima[unread, columns][:, None])
        pairs, within = (reached > best[unread]).nonzero(as_tuple=True)
        unread, tokens = unread[pairs], columns[pairs] * BLOCK + within
        _race_on(values[pairs, within], tokens, unread, draws.take(unread), best[:, 0], winners)
    return winners


def _race_on(
    logits: Tensor, tokens: Tensor, rows: Tensor, draws: Draws, best: Tensor, winners: Tensor
) -> None:
    """Race further tokens of some rows against their best sums; update the winners in place."""
    ids = tokens[:, None]
    sums = draws.log_probabilities(logits[:, None], ids).add_(token_noise(draws.keys, ids))[:, 0]
    best = best.scatter_reduce(0, rows, sums, "amax")
    leads = ((sums == best[rows]) & (sums > -torch.inf)).nonzero()[:, 0]
    winners[rows[leads]] = tokens[leads]
