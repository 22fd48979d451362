"""Candidates of a real model: filters and races over whole rows of logits, in tensors on their device."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flyserve.core.limits import MOST_PROPOSED
from flyserve.core.noise import Floats, Ints, Words
from flyserve.core.request import SamplingParams
from flyserve.core.types import SparseDistribution
from services.engine.head.leading import leading_logits
from services.engine.head.mass import Mass
from services.engine.head.noise import block_noise_maxima, key_tensor
from services.engine.head.race import Draws, Entrants, distributions_tensor, first_entrants, race

_MOST_LEADING = 1024
"""Largest top_k that is found for all rows at once."""
_SORTED_ROWS = 32
"""Rows that are sorted at once."""
_MARGIN = 1e-4
"""Relative margin of a bound for float32 sums."""
_MOST_RACES = 100
"""Most races for one token: each but the last excludes a token, and a few are usual."""


class LogitCandidates:
    """`Candidates` from logits, with filters in the order of transformers: temperature, top-k, top-p, min-p.

    The nucleus is that of the top-k tokens. (vLLM applies min-p first, so its nucleus is that of the tokens
    kept by min-p.) Ties with the last token kept are kept too.

    The filters of a row with top-k are computed among its leading logits, which hold all tokens that are kept
    (unless more tokens are as likely as the last of them). Such rows are short.

    In any other row, a token is in the nucleus if the tokens above it have less than top_p of the
    probability. That takes one sum per token, whereas the lowest logit of a nucleus of thousands takes a
    sorted row. So a token is drawn from a set that encloses the nucleus, and tested. The winner of a race
    wins every race among fewer tokens that it takes part in, so a token that passes is the one that the
    nucleus draws. If it fails, all tokens up to its logit are excluded, and the rest race again.
    """

    def __init__(
        self,
        blocks: Tensor,
        maxima: Tensor,
        vocab_size: int,
        sampling: Sequence[SamplingParams],
        scratch: Tensor,
        needs_leading: bool,
        raw_mass: Mass | None = None,
    ) -> None:
        """Take logits (rows, blocks, BLOCK), the largest of each block (rows, blocks), and their parameters.

        `scratch` is memory for two slices of rows. `needs_leading` if `leading` will be called. `raw_mass` is
        the mass of these logits at temperature 1, if it is known.
        """
        self._blocks, self._maxima = blocks, maxima
        self._logits = blocks.flatten(1)
        self._scratch = scratch
        self._vocab_size = vocab_size
        self._raw_mass = raw_mass if all(each.temperature == 1.0 for each in sampling) else None
        columns = [(each.temperature, each.top_p, each.min_p) for each in sampling]
        numbers = torch.tensor(columns, dtype=torch.float64).to(blocks.device)
        self._temperatures, self._top_p, self._min_p = numbers[:, 0:1], numbers[:, 1:2], numbers[:, 2:3]
        # The lowest logit kept lies between `_floors` and `_known`; they are equal where it is settled.
        self._floors = torch.full_like(self._top_p, -torch.inf)
        self._known = torch.full_like(self._top_p, torch.inf)
        self._has_open_nucleus = self._top_p < 1.0
        self._is_short = torch.zeros_like(self._has_open_nucleus)
        limits = [each.top_k if each.top_k < vocab_size else 0 for each in sampling]
        wanted = max((limit + 1 for limit in limits if limit <= _MOST_LEADING), default=1)
        if any(limits) or needs_leading:
            num_leading = max(wanted, MOST_PROPOSED)
            self._values, self._ids = leading_logits(blocks, maxima, num_leading)
        if any(limits):
            self._apply_top_k(limits)
        self._any_open = any(each.top_p < 1.0 for each in sampling) and bool(self._has_open_nucleus.any())
        if self._any_open:
            self._enclose_nuclei()
        if any(each.min_p for each in sampling):
            largest = maxima.amax(-1, keepdim=True)
            self._floors = torch.maximum(self._floors, largest + self._temperatures * self._min_p.log())

    def accepts(self, rows: Ints, tokens: Ints, thresholds: Floats) -> NDArray[np.bool_]:
        index, logits = self._of(rows, tokens)
        limits = torch.from_numpy(thresholds).to(index.device)[:, None]
        is_kept = self._contains(index, logits)
        lowest = (logits / self._temperatures[index] - self._log_totals(index)).exp()
        accepted = is_kept & (lowest > limits)
        # The probability of an open nucleus is at least top_p, but min-p may exclude much of it.
        may_pass = lowest * (1.0 + _MARGIN) > limits * self._top_p[index]
        is_unknown = is_kept & ~accepted & self._has_open_nucleus[index]
        is_unknown &= may_pass | (self._min_p[index] > 0.0)
        if (unknown := is_unknown[:, 0].nonzero()[:, 0]).numel():
            accepted[unknown] = self._probabilities(index[unknown], logits[unknown]) > limits[unknown]
        return _column(accepted)

    def probabilities(self, rows: Ints, tokens: Ints) -> Floats:
        """Return the exact p of one token for each of some rows."""
        return _column(self._probabilities(*self._of(rows, tokens)))

    def excludes(self, rows: Ints, tokens: Ints) -> NDArray[np.bool_]:
        return _column(~self._contains(*self._of(rows, tokens)))

    def leading(self, rows: Ints) -> tuple[Ints, Floats]:
        index = torch.from_numpy(rows).to(self._blocks.device)
        values = self._values[index, :MOST_PROPOSED].double()
        floors = self._floors[index]
        if self._any_open:
            reached = self._mass.weigh(index, values).cumsum(-1)
            last = torch.searchsorted(reached, self._goals[index]).clamp(max=values.shape[1] - 1)
            lowest = torch.maximum(floors, values.gather(1, last))
            floors = torch.where(self._has_open_nucleus[index], lowest, floors)
        values = values.masked_fill(values < floors, -torch.inf)
        return self._ids[index, :MOST_PROPOSED].cpu().numpy(), values.cpu().numpy()

    def draw(self, rows: Ints, keys: Words, subtract: Sequence[SparseDistribution | None]) -> Ints:
        device = self._blocks.device
        index = torch.from_numpy(rows).to(device)
        subtracted = distributions_tensor(subtract, device)
        totals = None
        if subtracted is not None:
            # A token with q = 1 is excluded whatever its p; for other distributions, p must be exact.
            is_wide = torch.tensor([each is not None and len(each.ids) > 1 for each in subtract])
            self._settle(index[is_wide.to(device)])
            totals = self._log_totals(index)
        columns = (self._temperatures[index], self._floors[index], totals)
        draws = Draws(key_tensor(keys, device)[:, None], *columns, subtracted)
        is_short = self._is_short[index][:, 0]
        tokens = torch.empty_like(index)
        if (short := is_short.nonzero()[:, 0]).numel():
            few = index[short]
            draw = _take(draws, short, len(index))
            tokens[short] = Entrants.of(self._ids[few], self._values[few], draw).winners()[0][:, 0]
        if (others := (~is_short).nonzero()[:, 0]).numel():
            tokens[others] = self._race(index[others], _take(draws, others, len(index)))
        return tokens.cpu().numpy()

    def _apply_top_k(self, limits: Sequence[int]) -> None:
        """Find the lowest logit of the top-k tokens, and of the nucleus among them in short rows."""
        values, last = self._values, self._values.shape[1] - 1
        limit = torch.tensor(limits, device=values.device)[:, None]
        floors = values.gather(1, (limit - 1).clamp(0, last)).double().masked_fill_(limit == 0, -torch.inf)
        for row, count in enumerate(limits):
            if count > _MOST_LEADING:
                floors[row] = self._logits[row].topk(count).values[-1].double()
        self._is_short = (floors > values[:, -1:]) | (values.shape[1] >= self._vocab_size)
        reached = (self._leading_weights * (values >= floors)).cumsum(-1)
        lowest = values.gather(1, torch.searchsorted(reached, self._top_p * reached[:, -1:]).clamp(max=last))
        has_nucleus = self._has_open_nucleus & self._is_short
        self._floors = torch.where(has_nucleus, torch.maximum(floors, lowest.double()), floors)
        self._has_open_nucleus = self._has_open_nucleus & ~self._is_short

    def _enclose_nuclei(self) -> None:
        """Find the weight that each open nucleus must reach, and a logit below which it has no token.

        All tokens up to a logit have at most the vocabulary's size times its weight. If that is less than the
        weight outside the nucleus, the tokens above it reach the goal.
        """
        sums = self._mass.totals
        if (cut := (self._has_open_nucleus & (self._floors > -torch.inf))[:, 0].nonzero()[:, 0]).numel():
            sums = sums.index_copy(0, cut, self._mass.above(cut, _next_below(self._floors[cut])))
        self._goals = self._top_p * sums
        share = sums * (1.0 - self._top_p) * (1.0 - _MARGIN) / self._vocab_size
        rare = self._temperatures * self._mass.log(share)
        self._floors = torch.where(self._has_open_nucleus, torch.maximum(self._floors, rare), self._floors)

    @cached_property
    def _mass(self) -> Mass:
        return self._raw_mass or Mass(self._blocks, self._maxima, self._temperatures, self._scratch)

    @cached_property
    def _leading_weights(self) -> Tensor:
        return ((self._values.double() - self._values[:, :1]) / self._temperatures).exp()

    def _contains(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Check one logit for each of some ascending rows, (n, 1): a token that has it may be drawn."""
        if self._any_open:
            is_unknown = self._has_open_nucleus[rows] & (logits >= self._floors[rows])
            is_unknown &= logits < self._known[rows]
            if (unknown := is_unknown[:, 0].nonzero()[:, 0]).numel():
                some, tested = rows[unknown], logits[unknown]
                passes = self._mass.above(some, tested) < self._goals[some]
                above = torch.nextafter(tested, torch.full_like(tested, torch.inf))
                self._known[some] = torch.where(passes, tested.double(), self._known[some])
                self._floors[some] = torch.where(passes, self._floors[some], above.double())
        return (logits >= self._floors[rows]) & (logits > -torch.inf)

    def _settle(self, rows: Tensor) -> None:
        """Find the lowest logits of the open nuclei among some rows."""
        if not self._any_open:
            return
        rows = rows[self._has_open_nucleus[rows, 0]]
        for first in range(0, len(rows), _SORTED_ROWS):
            some = rows[first : first + _SORTED_ROWS]
            lowest = self._mass.lowest_reaching(some, self._goals[some], self._floors[some])
            self._floors[some] = torch.maximum(self._floors[some], lowest.double())
            self._has_open_nucleus[some] = False

    def _probabilities(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Return the exact p of one logit for each of some rows, (n, 1)."""
        self._settle(rows)
        p = (logits / self._temperatures[rows] - self._log_totals(rows)).exp()
        return torch.where(logits >= self._floors[rows], p, 0.0)

    def _log_totals(self, rows: Tensor) -> Tensor:
        """Return the logarithm of the sum of `exp(logit / temperature)` of the tokens kept, (n, 1).

        Where the nucleus is open, it is that of the tokens that the nucleus is taken from.
        """
        totals = torch.empty_like(self._floors)
        is_short = self._is_short[rows, 0]
        if (short := rows[is_short]).numel():
            kept = self._leading_weights[short] * (self._values[short] >= self._floors[short])
            largest = self._values[short, :1] / self._temperatures[short]
            totals[short] = kept.sum(-1, keepdim=True).log() + largest
        if (others := rows[~is_short]).numel():
            sums = self._mass.totals.clone()
            if self._any_open:
                sums = torch.where(self._has_open_nucleus, self._goals / self._top_p, sums)
            is_cut = (self._floors > -torch.inf) & ~self._has_open_nucleus
            if (cut := others[is_cut[others, 0]]).numel():
                sums[cut] = self._mass.above(cut, _next_below(self._floors[cut]))
            totals[others] = self._mass.log(sums)[others]
        return totals[rows]

    def _race(self, rows: Tensor, draws: Draws) -> Tensor:
        """Draw from whole rows, until each token may be drawn."""
        numbers = torch.arange(self._blocks.shape[1], device=rows.device)[None]
        noise = block_noise_maxima(draws.keys, numbers)
        entrants = first_entrants(self._blocks, self._maxima, rows, draws, noise)
        tokens = race(self._blocks, self._maxima, rows, draws, noise, entrants)
        pending = torch.arange(len(rows), device=rows.device)
        for _ in range(_MOST_RACES if self._any_open else 0):
            some, drawn = rows[pending], tokens[pending]
            is_final = self._contains(some, self._logits[some, drawn][:, None])[:, 0] | (drawn < 0)
            pending = pending[~is_final]
            if not pending.numel():
                break
            some = rows[pending]
            again = replace(draws.take(pending), floors=self._floors[some])
            left = entrants.take(pending, again.floors)
            if bool((left.winners()[0] < 0).any()):
                left = first_entrants(self._blocks, self._maxima, some, again, noise[pending])
            tokens[pending] = race(self._blocks, self._maxima, some, again, noise[pending], left)
        else:
            if self._any_open:
                raise FloatingPointError(f"no token is drawn in {_MOST_RACES} races: a sum is NaN")
        return tokens

    def _of(self, rows: Ints, tokens: Ints) -> tuple[Tensor, Tensor]:
        """Return rows, and the logits of one token for each, (n, 1)."""
        index = torch.from_numpy(rows).to(self._blocks.device)
        return index, self._logits[index, torch.from_numpy(tokens).to(index.device)][:, None]


def _take(draws: Draws, rows: Tensor, num_rows: int) -> Draws:
    return draws if len(rows) == num_rows else draws.take(rows)


def _next_below(floors: Tensor) -> Tensor:
    """Return the largest float32 number below each floor."""
    nearest = floors.float()
    lower = torch.nextafter(nearest, torch.full_like(nearest, -torch.inf))
    return torch.where(nearest.double() >= floors, lower, nearest)


def _column(values: Tensor) -> NDArray[Any]:
    return values[:, 0].cpu().numpy()
