"""Weights `exp(logit / T)` of whole rows, and their sums above a logit."""

import numpy as np
import torch
from torch import Tensor

from fly.noise import BLOCK

_SAFE_EXPONENT = 60.0
"""Largest exponent of a row for which weights and their sum stay well inside the range of float32."""
_FEW = 4
"""Blocks are copied if they are at most one in four; else all rows are computed in place."""


class Mass:
    """Weights of the tokens of whole rows at their temperatures; no filter is applied.

    The weight of a token is `exp((logit - origin) / T)`. The origin is 0 unless that exceeds float32, where
    it is the largest logit; so most rows need no pass that subtracts.

    Attributes:
        origins: Logits whose weight is 1, (rows, 1), float64.
        totals: Sums of the weights of each row, (rows, 1), float64.
    """

    def __init__(self, blocks: Tensor, maxima: Tensor, temperatures: Tensor | None, scratch: Tensor) -> None:
        """Take logits (rows, blocks, BLOCK), the largest of each block, and temperatures (rows, 1), float64.

        A temperature of None is 1 for all rows. `scratch` is memory for two copies of the logits.
        """
        self._logits, self._maxima = blocks.flatten(1), maxima
        self._weights, self._scratch = scratch
        self._temperatures = torch.ones((), dtype=torch.float64, device=blocks.device)
        if temperatures is not None:
            self._temperatures = temperatures
        largest = maxima.amax(-1, keepdim=True).double()
        is_safe = (largest / self._temperatures).abs() <= _SAFE_EXPONENT
        self.origins = largest.masked_fill(is_safe, 0.0)
        source = self._logits
        if not bool(is_safe.all()):
            source = torch.sub(source, self.origins.float(), out=self._weights)
        if temperatures is not None:
            source = torch.mul(source, temperatures.reciprocal().float(), out=self._weights)
        torch.exp(source, out=self._weights)
        self.totals = self._weights.sum(-1, keepdim=True).double()

    def log(self, sums: Tensor) -> Tensor:
        """Return the logarithm of sums of `exp(logit / T)`, given as sums of weights, (rows, n)."""
        return sums.log() + self.origins / self._temperatures

    def weigh(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Return the weights of some logits of some rows, (n, any), float64."""
        temperatures = self._temperatures.expand_as(self.origins)[rows]
        return ((logits.double() - self.origins[rows]) / temperatures).exp()

    def above(self, rows: Tensor, thresholds: Tensor) -> Tensor:
        """Return the weight of the tokens with a logit above a threshold, (n, 1), for some ascending rows.

        Such tokens lie in blocks with a larger maximum, which are few for most thresholds.

        NOTE: a comparison that writes 1.0 and 0.0 takes a seventh of the time of one that writes booleans on
        a CPU.
        """
        num_blocks = self._maxima.shape[1]
        places, columns = (self._maxima[rows] > thresholds).nonzero(as_tuple=True)
        if _FEW * len(places) > self._maxima.numel():
            return self._above_everywhere(rows, thresholds)
        index = rows[places] * num_blocks + columns
        logits = self._logits.view(-1, BLOCK).index_select(0, index)
        weights = self._weights.view(-1, BLOCK).index_select(0, index)
        sums = torch.gt(logits, thresholds[places], out=logits).mul_(weights).sum(-1).double()
        return torch.zeros_like(thresholds[:, 0], dtype=torch.float64).index_add_(0, places, sums)[:, None]

    def lowest_reaching(self, rows: Tensor, goals: Tensor, least: Tensor) -> Tensor:
        """Return the largest logit from which on the weights of a row reach its goal, (n, 1).

        `least` is a logit, (n, 1), that is not above the result.
        """
        values = _ascending(self._logits[rows])
        width = int((values >= least).sum(-1).max())
        values = values[:, values.shape[1] - width :].flip(-1)
        last = torch.searchsorted(self.weigh(rows, values).cumsum(-1), goals)
        return values.gather(1, last.clamp(max=width - 1))

    def _above_everywhere(self, rows: Tensor, thresholds: Tensor) -> Tensor:
        """Return `above` by passes over all rows, in place."""
        everywhere = torch.full_like(self._maxima[:, :1], torch.inf)
        everywhere[rows] = thresholds
        is_above = torch.gt(self._logits, everywhere, out=self._scratch)
        return is_above.mul_(self._weights).sum(-1, keepdim=True)[rows].double()


def _ascending(values: Tensor) -> Tensor:
    """Return each row in ascending order.

    NOTE: on a CPU, numpy sorts numbers 20 times faster than torch, which sorts their indices too.
    """
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1))
    return values.sort(-1).values
