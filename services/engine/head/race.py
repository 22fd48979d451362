"""Gumbel races over logits in torch: the token with the largest sum of log-probability and noise, per row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fly.noise import BLOCK
from fly.types import SparseDistribution
from services.engine.head.noise import block_noise_winners, token_noise

_FIRST = 16
"""Blocks of each row whose tokens race first."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Tokens to draw, one per row; all columns are (rows, 1) unless noted.

    Attributes:
        keys: Keys of the noise, int64.
        temperatures: Temperatures of the softmax, float64.
        floors: Logits below these are excluded, float64.
        totals: Logarithms of the sums of `exp(logit / temperature)`, float64; None if nothing is subtracted.
        subtracted: Distributions q as ascending ids and their probabilities, both (rows, any): the token is
            drawn from (p - q)+ instead of p; None draws all tokens from p.
    """

    keys: Tensor
    temperatures: Tensor
    floors: Tensor
    totals: Tensor | None = None
    subtracted: tuple[Tensor, Tensor] | None = None

    def take(self, rows: Tensor) -> "Draws":
        """Return the draws of some rows."""
        totals = None if self.totals is None else self.totals[rows]
        subtracted = self.subtracted and (self.subtracted[0][rows], self.subtracted[1][rows])
        return Draws(self.keys[rows], self.temperatures[rows], self.floors[rows], totals, subtracted)

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
        """Return the logarithm of p, which bounds that of (p - q)+; not normalised without totals."""
        log_p = logits / self.temperatures
        if self.totals is not None:
            log_p -= self.totals
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


def race_among(ids: Tensor, logits: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Draw one of the tokens `ids`, (rows, n), per row: return the tokens and their sums, both (rows, 1).

    A row without any possible token has -1 and -inf.
    """
    sums, leading = draws.log_probabilities(logits, ids).add_(token_noise(draws.keys, ids)).max(-1, True)
    return torch.where(sums > -torch.inf, ids.gather(1, leading), -1), sums


def race(blocks: Tensor, maxima: Tensor, rows: Tensor, draws: Draws, noise: Tensor) -> Tensor:
    """Draw one token per row from all its logits; read only the blocks that may contain it.

    `blocks` are logits, (any, blocks, BLOCK), and `maxima` the largest of each block, (any, blocks); `rows`,
    (rows,), are those of the draws, and `noise` the largest noise of each of their blocks, (rows, blocks).
    Returns token ids, -1 for a row without any possible token.

    The result is exact. No token of a block exceeds the block's bound, which is the sum of its largest logit
    (as a log-probability) and its largest noise, because rounding keeps the order of numbers. Among the few
    blocks with the largest bounds, the tokens with the largest logit and those with the largest noise race
    first. Then only blocks are read whose bound exceeds the best sum, and of these only the tokens get noise
    whose own log-probability and the block's largest noise exceed it.
    """
    num_blocks = blocks.shape[1]
    bounds = draws.bounds(maxima[rows]).add_(noise)
    first = bounds.topk(min(_FIRST, num_blocks), sorted=False).indices
    values = blocks.view(-1, BLOCK)[rows[:, None] * num_blocks + first]
    within = torch.stack([values.argmax(-1), block_noise_winners(draws.keys, first)], dim=-1)
    ids = (first[:, :, None] * BLOCK + within).flatten(1)
    winners, best = race_among(ids, values.gather(2, within).flatten(1), draws)
    unread, columns = (bounds > best).nonzero(as_tuple=True)
    if unread.numel():
        values = blocks.view(-1, BLOCK).index_select(0, rows[unread] * num_blocks + columns)
        reached = draws.take(unread).bounds(values).add_(noise[unread, columns][:, None])
        pairs, places = (reached > best[unread]).nonzero(as_tuple=True)
        unread, tokens = unread[pairs], columns[pairs] * BLOCK + places
        _race_on(values[pairs, places], tokens, unread, draws.take(unread), best[:, 0], winners[:, 0])
    return winners[:, 0]


def _race_on(
    logits: Tensor, tokens: Tensor, rows: Tensor, draws: Draws, best: Tensor, winners: Tensor
) -> None:
    """Race further tokens of some rows against their best sums; update the winners in place."""
    ids = tokens[:, None]
    sums = draws.log_probabilities(logits[:, None], ids).add_(token_noise(draws.keys, ids))[:, 0]
    best = best.scatter_reduce(0, rows, sums, "amax")
    leads = ((sums == best[rows]) & (sums > -torch.inf)).nonzero()[:, 0]
    winners[rows[leads]] = tokens[leads]
