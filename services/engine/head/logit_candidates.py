"""Candidates of a real model: filters and races over whole rows of logits, in tensors on the logits' device.

Most distributions of language models are peaked: a few dozen tokens hold what the filters keep. So the
largest logits of each row are found first (`leading_logits`), and everything is computed among these where
that is exact. It is where every other token is excluded: the others' logits are at most the last of the
leading ones, so they are excluded if that is below the lowest logit kept. Where it is not, or nothing is
filtered, the whole row takes part.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fly.limits import MOST_PROPOSED
from fly.noise import Floats, Ints, Words
from fly.request import SamplingParams
from fly.types import SparseDistribution
from services.engine.head.leading import leading_logits
from services.engine.head.mass import Mass
from services.engine.head.noise import key_tensor
from services.engine.head.race import BlockNoise, Draws, distributions_tensor, race, race_among

_MOST_LEADING = 1024
"""Largest top_k that is found for all rows at once."""
_MARGIN = 1e-4
"""Relative margin of a bound for float32 sums."""


class LogitCandidates:
    """`Candidates` from logits, with filters in the order of transformers: temperature, top-k, top-p, min-p.

    The nucleus is that of the top-k tokens. (vLLM applies min-p first, so its nucleus is that of the tokens
    kept by min-p.) Ties with the last token kept are kept too.

    A token is in the nucleus if the tokens above it have less than top_p of the probability. That takes one
    sum per token, whereas the lowest logit of a nucleus of thousands takes a search. So a draw that needs no
    totals draws from a set that encloses the nucleus, and tests its token. The winner of a race wins every
    race among fewer tokens that it takes part in, so a token that passes is the one that the nucleus draws.
    If it fails, all tokens up to its logit are excluded, and the rest race again.
    """

    def __init__(
        self,
        blocks: Tensor,
        maxima: Tensor,
        vocab_size: int,
        sampling: Sequence[SamplingParams],
        scratch: Tensor,
        needs_leading: bool,
        needs_totals: bool,
    ) -> None:
        """Take logits (rows, blocks, BLOCK), the largest of each block (rows, blocks), and their parameters.

        `scratch` is memory for two copies of the logits. `needs_leading` if `leading` will be called,
        `needs_totals` if `probabilities` will be called or distributions subtracted.
        """
        self._blocks, self._maxima = blocks, maxima
        self._logits = blocks.flatten(1)
        self._sampling = sampling
        self._scratch = scratch
        self._vocab_size = vocab_size
        columns = [(each.temperature, each.top_p, each.min_p) for each in sampling]
        numbers = torch.tensor(columns, dtype=torch.float64).to(blocks.device)
        self._temperatures, self._top_p, self._min_p = numbers[:, 0:1], numbers[:, 1:2], numbers[:, 2:3]
        wanted = max((each.top_k for each in sampling if each.top_k <= _MOST_LEADING), default=0)
        is_filtered = any(each.top_k or each.top_p < 1.0 or each.min_p for each in sampling)
        num_leading = max(MOST_PROPOSED, wanted) if is_filtered or needs_leading else 1
        self._values, self._ids = leading_logits(blocks, maxima, num_leading)
        self._last = self._values[:, -1:]
        self._weights = ((self._values.double() - self._values[:, :1]) / self._temperatures).exp()
        self._filter()
        if needs_totals:
            self._settle()

    def probabilities(self, tokens: Ints) -> Floats:
        logits = self._of(tokens).double()
        p = (logits / self._temperatures - self._totals).exp()
        return _column(torch.where(logits >= self._floors, p, 0.0))

    def excludes(self, tokens: Ints) -> NDArray[np.bool_]:
        logits = self._of(tokens)
        is_excluded = (logits < self._floors) | logits.isneginf()
        if self._is_open_nucleus:
            is_excluded |= self._unsettled & (logits <= self._rare)
            is_unknown = self._unsettled & ~is_excluded & (logits < self._kept)
            if (rows := is_unknown[:, 0].nonzero()[:, 0]).numel():
                is_excluded[rows] = self._mass.above_of(rows, logits[rows]) >= self._goals[rows]
        return _column(is_excluded)

    def leading(self, rows: Ints) -> tuple[Ints, Floats]:
        index = torch.from_numpy(rows).to(self._ids.device)
        values = self._values[index, :MOST_PROPOSED].double()
        values = values.masked_fill(values < self._floors[index], -torch.inf)
        return self._ids[index, :MOST_PROPOSED].cpu().numpy(), values.cpu().numpy()

    def draw(self, rows: Ints, keys: Words, subtract: Sequence[SparseDistribution | None]) -> Ints:
        device = self._ids.device
        index = torch.from_numpy(rows).to(device)
        subtracted = distributions_tensor(subtract, device)
        totals = torch.zeros_like(self._temperatures[index]) if subtracted is None else self._totals[index]
        draws = Draws(
            key_tensor(keys, device)[:, None],
            self._temperatures[index],
            self._floors[index],
            totals,
            subtracted,
        )
        is_closed = self._is_closed[index][:, 0]
        tokens = torch.empty_like(index)
        if (closed := is_closed.nonzero()[:, 0]).numel():
            few = index[closed]
            tokens[closed] = race_among(self._ids[few], self._values[few], _take(draws, closed, len(index)))
        if (open_ := (~is_closed).nonzero()[:, 0]).numel():
            tokens[open_] = self._race(index[open_], _take(draws, open_, len(index)))
        return tokens.cpu().numpy()

    def _filter(self) -> None:
        """Find the lowest logit kept of each row, among the leading logits if that is exact."""
        values = self._values
        floors = self._top_k_floors = self._find_top_k_floors()
        has_nucleus = self._top_p < 1.0
        self._kept = torch.full_like(self._last, torch.inf)
        self._unsettled = torch.zeros_like(has_nucleus)
        if any(each.top_p < 1.0 for each in self._sampling):
            reached = (self._weights * (values >= floors)).cumsum(-1)
            last = torch.searchsorted(reached, self._top_p * self._sums(floors))
            is_found = has_nucleus & (last < values.shape[1])
            lowest = values.gather(1, last.clamp(max=values.shape[1] - 1)).double()
            floors = torch.where(is_found, torch.maximum(floors, lowest), floors)
            self._unsettled = has_nucleus & ~is_found & (floors <= self._last)
            self._kept = torch.where(self._unsettled, self._last, self._kept)
        if any(each.min_p > 0.0 for each in self._sampling):
            floors = torch.maximum(floors, values[:, :1] + self._temperatures * self._min_p.log())
        self._floors = floors
        self._is_closed = (floors > self._last) | (values.shape[1] >= self._vocab_size)
        self._unsettled &= ~self._is_closed
        self._is_open_nucleus = bool(self._unsettled.any())

    def _find_top_k_floors(self) -> Tensor:
        """Return the logit of the last of the top-k tokens, float64, -inf where all are kept."""
        floors = torch.full_like(self._temperatures, -torch.inf)
        limits = [each.top_k if each.top_k < self._vocab_size else 0 for each in self._sampling]
        if not any(limits):
            return floors
        limit = torch.tensor(limits, device=floors.device)[:, None]
        found = self._values.gather(1, (limit - 1).clamp(0, self._values.shape[1] - 1)).double()
        floors = torch.where(limit > 0, found, floors)
        for row, count in enumerate(limits):
            if count > self._values.shape[1]:
                floors[row] = self._logits[row].topk(count).values[-1].double()
        return floors

    def _sums(self, floors: Tensor) -> Tensor:
        """Return the sum of weights from a floor on; the largest logit has weight 1."""
        among = (self._weights * (self._values >= floors)).sum(-1, keepdim=True)
        is_among = (floors > self._last) | (self._values.shape[1] >= self._vocab_size)
        if bool(is_among.all()):
            return among
        largest = self._mass.of(self._ids[:, :1])
        if bool(floors.isneginf().all()):
            return torch.where(is_among, among, 1.0 / largest)
        return torch.where(is_among, among, self._mass.above(_next_below(floors))[0] / largest)

    @cached_property
    def _mass(self) -> Mass:
        return Mass(self._logits, self._temperatures, self._scratch)

    @cached_property
    def _goals(self) -> Tensor:
        """Probability that the nucleus must reach, (rows, 1)."""
        if bool(self._top_k_floors.isneginf().all()):
            return self._top_p
        return self._top_p * self._mass.above(_next_below(self._top_k_floors))[0]

    @cached_property
    def _totals(self) -> Tensor:
        """Logarithm of the sum of `exp(logit / temperature)` of the tokens kept, (rows, 1)."""
        return self._values[:, :1] / self._temperatures + self._sums(self._floors).log()

    @cached_property
    def _rare(self) -> Tensor:
        """Logits up to which no token is in the nucleus, (rows, 1).

        All tokens up to a logit have at most the vocabulary's size times its probability. If that is less
        than the probability outside the nucleus, the tokens above it reach the goal.
        """
        outside = self._sums(self._top_k_floors) - self._goals / self._mass.of(self._ids[:, :1])
        share = (outside * (1.0 - _MARGIN) / self._vocab_size).clamp(min=torch.finfo(torch.float32).tiny)
        return (self._values[:, :1] + self._temperatures * share.log()).float()

    def _settle(self) -> None:
        """Find the floors of all nuclei that are larger than the leading logits."""
        if not self._is_open_nucleus:
            return
        lowest = self._mass.lowest_of_nucleus(self._goals, self._rare, self._last, self._unsettled).double()
        self._floors = torch.where(self._unsettled, torch.maximum(self._floors, lowest), self._floors)
        self._unsettled = torch.zeros_like(self._unsettled)
        self._is_open_nucleus = False

    def _race(self, rows: Tensor, draws: Draws) -> Tensor:
        """Draw from whole rows, until each token lies in its nucleus."""
        noise = BlockNoise.of(draws.keys, self._blocks.shape[1])
        tokens = race(self._blocks, self._maxima, rows, draws, noise)
        if not self._is_open_nucleus:
            return tokens
        pending = torch.arange(len(rows), device=rows.device)
        while True:
            logits = self._logits[rows, tokens[pending]][:, None]
            unknown = (self._unsettled[rows] & (logits < self._kept[rows]))[:, 0].nonzero()[:, 0]
            if not unknown.numel():
                return tokens
            pending, rows, logits = pending[unknown], rows[unknown], logits[unknown]
            passes = self._mass.above_of(rows, logits) < self._goals[rows]
            self._kept[rows] = torch.where(passes, logits, self._kept[rows])
            failed = (~passes)[:, 0].nonzero()[:, 0]
            if not failed.numel():
                return tokens
            pending, rows = pending[failed], rows[failed]
            self._floors[rows] = torch.nextafter(
                logits[failed], torch.full_like(logits[failed], torch.inf)
            ).double()
            again = replace(draws.take(pending), floors=self._floors[rows])
            tokens[pending] = race(self._blocks, self._maxima, rows, again, noise.take(pending))

    def _of(self, tokens: Ints) -> Tensor:
        return self._logits.gather(1, torch.from_numpy(tokens).to(self._ids.device)[:, None])


def _take(draws: Draws, rows: Tensor, num_rows: int) -> Draws:
    return draws if len(rows) == num_rows else draws.take(rows)


def _next_below(floors: Tensor) -> Tensor:
    """Return the largest float32 number below each floor."""
    nearest = floors.float()
    lower = torch.nextafter(nearest, torch.full_like(nearest, -torch.inf))
    return torch.where(nearest.double() >= floors, lower, nearest)


def _column(values: Tensor) -> NDArray[Any]:
    return values[:, 0].cpu().numpy()
