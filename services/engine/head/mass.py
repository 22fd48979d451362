"""Weights `exp(logit / T)` of whole rows: their totals, and their sums above a logit."""

import numpy as np
import torch
from torch import Tensor

from flyserve.core.noise import BLOCK

_SAFE_EXPONENT = 60.0
"""Largest exponent of a row for which weights and their sum stay well inside the range of float32."""


class Mass:
    """Weights of the tokens of whole rows at their temperatures; no filter is applied.

    The weight of a token is `exp((logit - origin) / T)`. The origin is 0 unless that exceeds float32, where
    it is the largest logit; so most rows need no pass that subtracts. The weights are not kept: they are
    computed slice by slice, in memory that stays in the cache of a CPU.

    Attributes:
        origins: Logits whose weight is 1, (rows, 1), float64.
        totals: Sums of the weights of each row, (rows, 1), float64.
    """

    def __init__(self, blocks: Tensor, maxima: Tensor, temperatures: Tensor | None, scratch: Tensor) -> None:
        """Take logits (rows, blocks, BLOCK), the largest of each block, and temperatures (rows, 1), float64.

        A temperature of None is 1 for all rows. `scratch` is memory for two slices of rows.
        """
        self._logits, self._maxima, self._scratch = blocks.flatten(1), maxima, scratch
        largest = maxima.amax(-1, keepdim=True).double()
        self._temperatures = torch.ones_like(largest) if temperatures is None else temperatures
        self._factors = None if temperatures is None else temperatures.reciprocal().float()
        is_safe = (largest / self._temperatures).abs() <= _SAFE_EXPONENT
        self.origins = largest.masked_fill(is_safe, 0.0)
        self._subtracted = None if bool(is_safe.all()) else self.origins.float()
        size = scratch.shape[1]
        rows = [slice(first, first + size) for first in range(0, len(blocks), size)]
        # NOTE: threads would share the sum of a single row, and add it in another order: sum halves.
        halves = [
            self._weights(self._logits[part], part).view(-1, 2, blocks[0].numel() // 2).sum(-1)
            for part in rows
        ]
        sums = [part.sum(-1, keepdim=True) for part in halves]
        self.totals = torch.cat(sums).double()

    def log(self, sums: Tensor) -> Tensor:
        """Return the logarithm of sums of `exp(logit / T)`, given as sums of weights, (rows, n)."""
        return sums.log() + self.origins / self._temperatures

    def weigh(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Return the weights of some logits of some rows, (n, any), float64."""
        return ((logits.double() - self.origins[rows]) / self._temperatures[rows]).exp()

    def above(self, rows: Tensor, thresholds: Tensor) -> Tensor:
        """Return the weight of the tokens with a logit above a threshold, (n, 1), for some rows.

        Such tokens lie in blocks with a larger maximum, which are few for most thresholds.

        NOTE: a comparison that writes 1.0 and 0.0 takes a seventh of the time of one that writes booleans on
        a CPU.
        """
        places, columns = (self._maxima[rows] > thresholds).nonzero(as_tuple=True)
        owners, thresholds = rows[places], thresholds[places]
        index = owners * self._maxima.shape[1] + columns
        blocks, spare = self._logits.view(-1, BLOCK), self._scratch[1].view(-1, BLOCK)
        sums = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
        for first in range(0, len(index), len(spare)):
            part = slice(first, first + len(spare))
            logits = torch.index_select(blocks, 0, index[part], out=spare[: len(index[part])])
            weights = self._weights(logits, owners[part])
            is_above = torch.gt(logits, thresholds[part], out=logits)
            sums.index_add_(0, places[part], weights.mul_(is_above).sum(-1).double())
        return sums[:, None]

    def lowest_reaching(self, rows: Tensor, goals: Tensor, least: Tensor) -> Tensor:
        """Return the largest logit from which on the weights of a row reach its goal, (n, 1).

        `least` is a logit, (n, 1), that is not above the result.
        """
        values = _ascending(self._logits[rows])
        width = int((values >= least).sum(-1).max())
        values = values[:, values.shape[1] - width :].flip(-1)
        last = torch.searchsorted(self.weigh(rows, values).cumsum(-1), goals)
        return values.gather(1, last.clamp(max=width - 1))

    def _weights(self, logits: Tensor, rows: slice | Tensor) -> Tensor:
        """Return the weights of logits of some rows, (rows, any), in the first half of the scratch memory."""
        weights = self._scratch[0].view(-1)[: logits.numel()].view(logits.shape)
        if self._subtracted is not None:
            logits = torch.sub(logits, self._subtracted[rows], out=weights)
        if self._factors is not None:
            logits = torch.mul(logits, self._factors[rows], out=weights)
        return torch.exp(logits, out=weights)


def _ascending(values: Tensor) -> Tensor:
    """Return each row in ascending order.

    NOTE: on a CPU, numpy sorts numbers 20 times faster than torch, which sorts their indices too.
    """
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1))
    return values.sort(-1).values
