"""How a token is drawn at a temperature above 0, under both couplings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fly.limits import MOST_PROPOSED
from fly.noise import Domain, Floats, Words, noise_keys, race_among, uniform
from fly.request import SamplingParams
from fly.types import Coupling, SparseDistribution
from services.engine.base import Scores, Work
from services.engine.head.candidates import Candidates, Lot
from services.engine.head.filters import log_total, lowest_kept


class Place(NamedTuple):
    """A position whose token is to be drawn.

    Attributes:
        sampling: At a temperature above 0.
        position: Of the token in its sequence.
        draft: The token that a drafter proposes there; -1 for none.
        proposal: What the draft was drawn from; None is a look-up, certain of its token.
        is_proposing: The token is a draft itself: under `rejection`, drawn from a truncated distribution.
    """

    sampling: SamplingParams
    position: int
    draft: int = -1
    proposal: SparseDistribution | None = None
    is_proposing: bool = False


class Drawn(NamedTuple):
    """A token, whether the filters exclude the draft, and what a proposed token was drawn from."""

    token: int
    is_excluded: bool
    distribution: SparseDistribution | None = None


def places(work: Work) -> Iterator[Place]:
    """One per output of a work that samples."""
    drafts = work.drafts or (-1,) * work.num_outputs
    for index in range(work.num_outputs):
        told = work.proposals[index] if index < len(work.proposals) else SparseDistribution((), ())
        position = work.first_position + index
        yield Place(work.sampling, position, drafts[index], told if told.ids else None, work.is_proposing)


def sampled_scores(drawn: Sequence[Drawn], entropies: Sequence[float]) -> Scores:
    """The answer for a sequence whose rows have been drawn."""
    return Scores(
        tuple(row.token for row in drawn),
        tuple(entropies),
        tuple(row.is_excluded for row in drawn),
        distributions=tuple(row.distribution for row in drawn if row.distribution is not None),
    )


class Sampler:
    """Draws for one forward's rows; a row's token depends on nothing but the row and its place."""

    def __init__(self, candidates: Candidates, places: Sequence[Place]) -> None:
        """Takes one place for every row of the candidates."""
        self._candidates = candidates
        self._places = places
        self._floors = [lowest_kept(candidates.logits(row), p.sampling) for row, p in enumerate(places)]
        self._seeds = np.array([place.sampling.seed or 0 for place in places], dtype=np.uint64)
        self._positions = np.array([place.position for place in places], dtype=np.uint64)
        self._keys_of = dict[Domain, Words]()

    def draw(self) -> list[Drawn]:
        """One token per row."""
        tokens, lots = [0] * len(self._places), list[Lot]()
        distributions = dict[int, SparseDistribution]()
        for row, place in enumerate(self._places):
            if place.sampling.coupling is Coupling.SHARED_NOISE:
                lots.append(self._lot(row, Domain.SHARED))
            elif place.is_proposing:
                distributions[row] = self._truncated(row)
            elif (lot := self._judge(row)) is not None:
                lots.append(lot)
            else:
                tokens[row] = place.draft
        for row, token in self._propose(distributions):
            tokens[row] = token
        for lot, token in zip(lots, self._candidates.draw(lots) if lots else (), strict=True):
            # Nothing is left of p - q where they are equal up to rounding: the draft stands.
            tokens[lot.row] = token if token >= 0 else max(0, self._places[lot.row].draft)
        return [Drawn(token, self._excludes(row), distributions.get(row)) for row, token in enumerate(tokens)]

    def _judge(self, row: int) -> Lot | None:
        """Modified rejection sampling: None accepts the draft, otherwise what to draw in its place.

        The draft x of q is accepted with min(1, p(x) / q(x)); what replaces it is drawn from (p - q)+ (Chen
        et al., 2302.01318).
        """
        place, floor = self._places[row], self._floors[row]
        if place.draft < 0:
            return self._lot(row, Domain.BONUS)
        q = place.proposal or SparseDistribution((place.draft,), (1.0,))
        total = log_total(self._candidates.logits(row), floor, place.sampling.temperature)
        logit = self._candidates.logit(row, place.draft)
        p = math.exp(logit / place.sampling.temperature - total) if logit >= floor else 0.0
        if self._acceptance[row] * q.probabilities[q.ids.index(place.draft)] < p:
            return None
        return self._lot(row, Domain.RESIDUAL)._replace(total=total, less=q)

    @cached_property
    def _acceptance(self) -> Floats:
        """(rows,) the number in (0, 1) that decides whether a row's draft is accepted."""
        return uniform(self._keys(Domain.ACCEPTANCE))

    def _truncated(self, row: int) -> SparseDistribution:
        """The most likely tokens, renormalised."""
        ids, logits = self._candidates.top(row, MOST_PROPOSED)
        is_kept = (logits >= self._floors[row]) & (logits > -np.inf)
        scaled = logits[is_kept] / self._places[row].sampling.temperature
        weights = np.exp(scaled - scaled.max())
        is_possible = weights > 0
        probabilities = weights[is_possible] / weights.sum()
        return SparseDistribution(tuple(ids[is_kept][is_possible].tolist()), tuple(probabilities.tolist()))

    def _propose(self, distributions: Mapping[int, SparseDistribution]) -> Iterator[tuple[int, int]]:
        """Draws the drafts themselves, by row."""
        if not distributions:
            return
        rows = list(distributions)
        ids = np.zeros((len(rows), MOST_PROPOSED), dtype=np.int64)
        log_probs = np.full(ids.shape, -np.inf)
        for index, told in enumerate(distributions.values()):
            ids[index, : len(told.ids)] = told.ids
            log_probs[index, : len(told.ids)] = np.log(told.probabilities)
        yield from zip(rows, race_among(ids, log_probs, self._keys(Domain.DRAFT)[rows]).tolist(), strict=True)

    def _lot(self, row: int, domain: Domain) -> Lot:
        temperature = self._places[row].sampling.temperature
        return Lot(row, self._keys(domain)[row], temperature, self._floors[row])

    def _keys(self, domain: Domain) -> Words:
        """(rows,) of all rows' noise in a domain."""
        if domain not in self._keys_of:
            domains = np.full_like(self._seeds, domain)
            self._keys_of[domain] = noise_keys(self._seeds, self._positions, domains)
        return self._keys_of[domain]

    def _excludes(self, row: int) -> bool:
        draft = self._places[row].draft
        if draft < 0:
            return False
        logit = self._candidates.logit(row, draft)
        return logit == -math.inf or logit < self._floors[row]
