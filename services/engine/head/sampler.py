"""Sample tokens at a temperature above 0, under both couplings."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from fly.limits import MOST_PROPOSED
from fly.noise import Domain, Floats, Words, noise_keys, race_among, uniform
from fly.request import SamplingParams
from fly.types import Coupling, SparseDistribution
from services.engine.base import ForwardInput, Scores
from services.engine.head.candidates import Candidates, RaceEntry
from services.engine.head.filters import log_total, lowest_kept


class SampleRequest(NamedTuple):
    """A position to draw a token at.

    Attributes:
        sampling: Sampling parameters with a temperature above 0.
        position: Position of the token in its sequence.
        draft: The token that a drafter proposes there; -1 for none.
        proposal: Distribution that the draft was drawn from; None for a look-up, which has probability 1.
        is_proposing: The drawn token is a draft itself; under `rejection`, from a truncated distribution.
    """

    sampling: SamplingParams
    position: int
    draft: int = -1
    proposal: SparseDistribution | None = None
    is_proposing: bool = False


class DrawnToken(NamedTuple):
    """A drawn token.

    Attributes:
        is_excluded: The filters exclude the draft.
        distribution: Distribution that it was drawn from, if it is a draft under `rejection`.
    """

    token: int
    is_excluded: bool
    distribution: SparseDistribution | None = None


def sample_requests(item: ForwardInput) -> Iterator[SampleRequest]:
    """Return a request per output of an input that samples."""
    drafts = item.drafts or (-1,) * item.num_outputs
    for index in range(item.num_outputs):
        proposal = item.proposals[index] if index < len(item.proposals) else SparseDistribution((), ())
        yield SampleRequest(
            sampling=item.sampling,
            position=item.first_position + index,
            draft=drafts[index],
            proposal=proposal if proposal.ids else None,
            is_proposing=item.is_proposing,
        )


def sampled_scores(drawn: Sequence[DrawnToken], entropies: Sequence[float]) -> Scores:
    """Return the scores of a sequence whose tokens have been drawn."""
    return Scores(
        choices=tuple(row.token for row in drawn),
        entropies=tuple(entropies),
        excluded=tuple(row.is_excluded for row in drawn),
        distributions=tuple(row.distribution for row in drawn if row.distribution is not None),
    )


class Sampler:
    """Draws the tokens of one forward; each depends on nothing but its row of logits and its request."""

    def __init__(self, candidates: Candidates, requests: Sequence[SampleRequest]) -> None:
        """Take one request for each row of the candidates."""
        self._candidates = candidates
        self._requests = requests
        self._floors = [lowest_kept(candidates.logits(row), r.sampling) for row, r in enumerate(requests)]
        self._seeds = np.array([request.sampling.seed or 0 for request in requests], dtype=np.uint64)
        self._positions = np.array([request.position for request in requests], dtype=np.uint64)
        self._keys_of = dict[Domain, Words]()

    def draw(self) -> list[DrawnToken]:
        """Return one token per row."""
        tokens, entries = [0] * len(self._requests), list[RaceEntry]()
        distributions = dict[int, SparseDistribution]()
        for row, request in enumerate(self._requests):
            if request.sampling.coupling is Coupling.SHARED_NOISE:
                entries.append(self._entry(row, Domain.SHARED))
            elif request.is_proposing:
                distributions[row] = self._truncated(row)
            elif (entry := self._judge(row)) is not None:
                entries.append(entry)
            else:
                tokens[row] = request.draft
        for row, token in self._propose(distributions):
            tokens[row] = token
        for entry, token in zip(entries, self._candidates.draw(entries) if entries else (), strict=True):
            # Where p and q are equal up to rounding, (p - q)+ is 0 everywhere: accept the draft.
            tokens[entry.row] = token if token >= 0 else max(0, self._requests[entry.row].draft)
        return [
            DrawnToken(token, self._excludes(row), distributions.get(row)) for row, token in enumerate(tokens)
        ]

    def _judge(self, row: int) -> RaceEntry | None:
        """Apply modified rejection sampling: return None to accept the draft, else the entry to draw instead.

        A draft x drawn from q is accepted with probability min(1, p(x) / q(x)); its replacement is drawn from
        (p - q)+ (Chen et al., 2302.01318).
        """
        request, floor = self._requests[row], self._floors[row]
        if request.draft < 0:
            return self._entry(row, Domain.BONUS)
        q = request.proposal or SparseDistribution((request.draft,), (1.0,))
        total = log_total(self._candidates.logits(row), floor, request.sampling.temperature)
        logit = self._candidates.logit(row, request.draft)
        p = math.exp(logit / request.sampling.temperature - total) if logit >= floor else 0.0
        if self._acceptance[row] * q.probabilities[q.ids.index(request.draft)] < p:
            return None
        return self._entry(row, Domain.RESIDUAL)._replace(total=total, subtract=q)

    @cached_property
    def _acceptance(self) -> Floats:
        """Uniform numbers in (0, 1) that decide the acceptance of drafts, (rows,)."""
        return uniform(self._keys(Domain.ACCEPTANCE))

    def _truncated(self, row: int) -> SparseDistribution:
        """Return the distribution of the most likely tokens, renormalised."""
        ids, logits = self._candidates.top(row, MOST_PROPOSED)
        is_kept = (logits >= self._floors[row]) & (logits > -np.inf)
        scaled = logits[is_kept] / self._requests[row].sampling.temperature
        weights = np.exp(scaled - scaled.max())
        is_possible = weights > 0
        probabilities = weights[is_possible] / weights.sum()
        return SparseDistribution(tuple(ids[is_kept][is_possible].tolist()), tuple(probabilities.tolist()))

    def _propose(self, distributions: Mapping[int, SparseDistribution]) -> Iterator[tuple[int, int]]:
        """Draw a draft from each distribution; yield row and token."""
        if not distributions:
            return
        rows = list(distributions)
        ids = np.zeros((len(rows), MOST_PROPOSED), dtype=np.int64)
        log_probs = np.full(ids.shape, -np.inf)
        for index, proposal in enumerate(distributions.values()):
            ids[index, : len(proposal.ids)] = proposal.ids
            log_probs[index, : len(proposal.ids)] = np.log(proposal.probabilities)
        yield from zip(rows, race_among(ids, log_probs, self._keys(Domain.DRAFT)[rows]).tolist(), strict=True)

    def _entry(self, row: int, domain: Domain) -> RaceEntry:
        temperature = self._requests[row].sampling.temperature
        return RaceEntry(
            row=row, key=self._keys(domain)[row], temperature=temperature, floor=self._floors[row]
        )

    def _keys(self, domain: Domain) -> Words:
        """Return the noise keys of all rows in a domain, (rows,)."""
        if domain not in self._keys_of:
            domains = np.full_like(self._seeds, domain)
            self._keys_of[domain] = noise_keys(self._seeds, self._positions, domains)
        return self._keys_of[domain]

    def _excludes(self, row: int) -> bool:
        draft = self._requests[row].draft
        if draft < 0:
            return False
        logit = self._candidates.logit(row, draft)
        return logit == -math.inf or logit < self._floors[row]
