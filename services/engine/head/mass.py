"""Probability mass above a logit, for many rows at once, and the search for the lowest logit of a nucleus."""

from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor

from fly.noise import BLOCK
from services.engine.head.leading import leading_logits

_SORTED = 64
"""Tokens that are sorted at the end of the search for a nucleus."""
_FEW = 4
"""A copy of rows is faster than to compute all rows in place if it is one in four or fewer."""
_BEYOND = 1e30
"""Subtracted from logits to exclude them."""


class Mass:
    """The softmax of rows of logits at their temperatures; no filter is applied."""

    def __init__(self, logits: Tensor, temperatures: Tensor, scratch: Tensor) -> None:
        """Take logits (rows, tokens), temperatures (rows, 1), and memory for twice the logits."""
        self._logits = logits
        self._scratch = scratch[0]
        torch.div(logits, temperatures.float(), out=self._scratch)
        self._p = torch.softmax(self._scratch, -1, out=scratch[1])

    def of(self, ids: Tensor) -> Tensor:
        """Return the probabilities of tokens, (rows, n), as float64."""
        return self._p.gather(1, ids).double()

    def above(self, thresholds: Tensor) -> tuple[Tensor, Tensor]:
        """Return probability and number of the tokens with a logit above a threshold, all (rows, 1).

        NOTE: a comparison that writes 1.0 and 0.0 takes a seventh of the time of one that writes booleans on
        a CPU.
        """
        is_above = torch.gt(self._logits, thresholds, out=self._scratch)
        number = is_above.sum(-1, keepdim=True)
        return is_above.mul_(self._p).sum(-1, keepdim=True).double(), number

    def above_of(self, rows: Tensor, thresholds: Tensor) -> Tensor:
        """Return the probability of the tokens with a logit above a threshold, (n, 1), for some rows."""
        if _FEW * len(rows) > len(self._p):
            everywhere = torch.full_like(self._p[:, :1], torch.inf)
            everywhere[rows] = thresholds
            return self.above(everywhere)[0][rows]
        is_above = torch.gt(self._logits[rows], thresholds, out=self._scratch[: len(rows)])
        return is_above.mul_(self._p[rows]).sum(-1, keepdim=True).double()

    def lowest_of_nucleus(self, goals: Tensor, low: Tensor, high: Tensor, is_wanted: Tensor) -> Tensor:
        """Return the lowest logit of each row's nucleus; -inf if even the tokens above `low` miss the goal.

        The nucleus is the smallest set of most likely tokens whose probability reaches its goal. Its lowest
        logit lies above `low` and not above `high`. All arguments are (rows, 1); rows that are not wanted get
        an arbitrary number.

        The tokens above a trial number have less than the goal if it lies in the nucleus, else at least the
        goal. Trials between the two numbers, in the middle and where the goal is expected, bring them closer
        until few tokens are left between them, which are sorted. Where many have the same logit, more are
        left; so every eighth trial tests the largest logit between the two numbers, which ends the search if
        it is the result.
        """
        (below, most), (above, least) = self.above(low), self.above(high)
        is_missed = below < goals
        for step in count():
            is_open = is_wanted & (most - least > _SORTED) & (torch.nextafter(low, high) < high)
            if not is_open.any():
                break
            if step % 8 == 7:
                high = self._reaching(torch.zeros_like(goals), high)
                trial = torch.nextafter(high, low)
            else:
                share = ((goals - above) / (below - above)).clamp(0.01, 0.99).float() if step % 3 < 2 else 0.5
                trial = torch.maximum(high - (high - low) * share, torch.nextafter(low, high))
            probability, number = self.above(trial)
            raises, lowers = is_open & (probability >= goals), is_open & (probability < goals)
            low, below, most = _replaced(raises, (trial, probability, number), (low, below, most))
            high, above, least = _replaced(lowers, (trial, probability, number), (high, above, least))
        lowest = torch.where(most - least > _SORTED, high, self._reaching(goals - above, high))
        return torch.where(is_missed, -torch.inf, lowest)

    def _reaching(self, missing: Tensor, high: Tensor) -> Tensor:
        """Return the logit that adds the missing probability to that of the tokens above `high`."""
        above = torch.gt(self._logits, high, out=self._scratch).mul_(_BEYOND)
        blocks = torch.sub(self._logits, above, out=above).view(len(above), -1, BLOCK)
        values, ids = leading_logits(blocks, blocks.amax(-1), _SORTED)
        last = torch.searchsorted(self.of(ids).cumsum(-1), missing).clamp(max=values.shape[1] - 1)
        return values.gather(1, last)


def _replaced(mask: Tensor, new: tuple[Tensor, ...], old: tuple[Tensor, ...]) -> Iterator[Tensor]:
    return (torch.where(mask, one, other) for one, other in zip(new, old, strict=True))
