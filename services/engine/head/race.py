"""Gumbel races over logits in torch: the token with the largest sum of log-probability and noise, per row."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flyserve.core.noise import BLOCK
from flyserve.core.types import SparseDistribution
from services.engine.head.noise import block_noise_winners, token_noise

_FIRST = 16
"""Blocks of each row whose tokens race first."""
_ROUNDING = 1e-6
"""Relative error of a bound in float32; that of its terms is a tenth."""
_LARGEST_NOISE = 100.0
"""Twice the largest noise of a block, and more."""


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
        """Return the logarithm of p or (p - q)+ of tokens, (rows, n); -inf excludes a token.

        It is not normalised without totals.
        """
        log_p = logits / self.temperatures
        if self.totals is not None:
            log_p -= self.totals
        log_p.masked_fill_(logits < self.floors, -torch.inf)
        if self.subtracted is None:
            return log_p
        listed, probabilities = self.subtracted
        places = torch.searchsorted(listed, ids.contiguous()).clamp_(max=listed.shape[1] - 1)
        q = torch.where(listed.gather(1, places) == ids, probabilities.gather(1, places), 0.0)
        return torch.where(q > 0, (log_p.exp() - q).clamp_(min=0.0).log(), log_p)


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


@dataclass(frozen=True, slots=True)
class Entrants:
    """Tokens of each row and their sums of log-probability and noise, (rows, n); -inf excludes a token."""

    ids: Tensor
    logits: Tensor
    sums: Tensor

    @classmethod
    def of(cls, ids: Tensor, logits: Tensor, draws: Draws, maxima: Tensor | None = None) -> "Entrants":
        """Compute the sums of tokens; `maxima` are the largest noise of their blocks, if it is known."""
        log_p = draws.log_probabilities(logits, ids)
        return cls(ids, logits, log_p.add_(token_noise(draws.keys, ids, maxima)))

    def take(self, rows: Tensor, floors: Tensor) -> "Entrants":
        """Return the entrants of some rows, without those that have a logit below their row's floor."""
        logits = self.logits[rows]
        sums = self.sums[rows].masked_fill_(logits < floors, -torch.inf)
        return Entrants(self.ids[rows], logits, sums)

    def winners(self) -> tuple[Tensor, Tensor]:
        """Return the token with the largest sum of each row, -1 for none, and its sum: both (rows, 1)."""
        sums, leading = self.sums.max(-1, keepdim=True)
        return torch.where(sums > -torch.inf, self.ids.gather(1, leading), -1), sums


def first_entrants(blocks: Tensor, maxima: Tensor, rows: Tensor, draws: Draws, noise: Tensor) -> Entrants:
    """Return likely winners of a race: tokens of the blocks of each row with the largest bounds.

    They are the tokens of each block with the largest logit and with the largest noise. For the arguments
    see `race`.
    """
    num_blocks = blocks.shape[1]
    chosen = _bounds(maxima[rows], draws, noise).topk(min(_FIRST, num_blocks), sorted=False).indices
    values = blocks.view(-1, BLOCK)[rows[:, None] * num_blocks + chosen]
    within = torch.stack([values.argmax(-1), block_noise_winners(draws.keys, chosen)], dim=-1)
    ids = (chosen[:, :, None] * BLOCK + within).flatten(1)
    largest = noise.gather(1, chosen).repeat_interleave(2, dim=1)
    return Entrants.of(ids, values.gather(2, within).flatten(1), draws, largest)


def race(
    blocks: Tensor, maxima: Tensor, rows: Tensor, draws: Draws, noise: Tensor, entrants: Entrants
) -> Tensor:
    """Draw one token per row from all its logits; read only the blocks that may contain it.

    `blocks` are logits, (any, blocks, BLOCK), and `maxima` the largest of each block, (any, blocks); `rows`,
    (rows,), are those of the draws, and `noise` the largest noise of each of their blocks, (rows, blocks).
    Returns token ids, -1 for a row without any possible token.

    The result is exact, whatever the entrants are. No token of a block exceeds the block's bound, which is
    the sum of its largest logit (as a log-probability) and its largest noise. So only blocks are read whose
    bound exceeds the best sum of the entrants, and of these only the tokens race whose own log-probability
    and the block's largest noise exceed it. Bounds are float32, so the best sum is lowered by a margin for
    their rounding.
    """
    winners, best = entrants.winners()
    totals = torch.zeros_like(best) if draws.totals is None else draws.totals
    least = best - _ROUNDING * (best.abs() + 2 * totals.abs() + _LARGEST_NOISE)
    unread, columns = (_bounds(maxima[rows], draws, noise) > least.float()).nonzero(as_tuple=True)
    if unread.numel():
        values = blocks.view(-1, BLOCK).index_select(0, rows[unread] * blocks.shape[1] + columns)
        largest = noise[unread, columns][:, None]
        limits = draws.temperatures[unread] * ((least + totals)[unread] - largest)
        pairs, places = (values > limits.float()).nonzero(as_tuple=True)
        ids, unread = columns[pairs] * BLOCK + places, unread[pairs]
        logits = values[pairs, places][:, None]
        others = Entrants.of(ids[:, None], logits, draws.take(unread), largest[pairs]).sums[:, 0]
        best = best[:, 0].scatter_reduce(0, unread, others, "amax")
        leads = ((others == best[unread]) & (others > -torch.inf)).nonzero()[:, 0]
        winners[unread[leads], 0] = ids[leads]
    return winners[:, 0]


def _bounds(maxima: Tensor, draws: Draws, noise: Tensor) -> Tensor:
    """Return the largest possible sum of each block, (rows, blocks), up to rounding to float32."""
    bounds = torch.addcmul(noise.float(), maxima, draws.temperatures.reciprocal().float())
    if draws.totals is not None:
        bounds -= draws.totals.float()
    return bounds.masked_fill_(maxima < draws.floors.float(), -torch.inf)
