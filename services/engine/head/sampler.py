"""Sample tokens at a temperature above 0, under both couplings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flyserve.core.limits import MOST_PROPOSED
from flyserve.core.noise import Domain, Ints, Words, noise_keys, race_among, uniform
from flyserve.core.request import SamplingParams
from flyserve.core.types import Coupling, SparseDistribution
from services.engine.base import ForwardInput, Scores
from services.engine.head.candidates import Candidates


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

    @property
    def is_rejection(self) -> bool:
        return self.sampling.coupling is Coupling.REJECTION


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
    """Draws the tokens of one forward; each depends on nothing but its row of candidates and its request."""

    def __init__(self, candidates: Candidates, requests: Sequence[SampleRequest]) -> None:
        """Take one request for each row of the candidates."""
        self._candidates = candidates
        self._requests = requests
        self._seeds = np.array([request.sampling.seed or 0 for request in requests], dtype=np.uint64)
        self._positions = np.array([request.position for request in requests], dtype=np.uint64)
        self._drafts = np.array([request.draft for request in requests])

    def draw(self) -> list[DrawnToken]:
        """Return one token per row."""
        rejection = [row for row, each in enumerate(self._requests) if each.is_rejection]
        distributions = self._truncated([row for row in rejection if self._requests[row].is_proposing])
        judged = [row for row in rejection if row not in distributions and self._drafts[row] >= 0]
        rejected = self._rejected(judged)
        tokens = self._drafts.copy()
        if distributions:
            tokens[list(distributions)] = self._propose(distributions)
        settled = {*distributions, *judged} - rejected.keys()
        rows = np.array([row for row in range(len(self._requests)) if row not in settled], dtype=np.int64)
        if rows.size:
            keys = self._keys(rows, [self._domain(row, rejected) for row in rows.tolist()])
            drawn = self._candidates.draw(rows, keys, [rejected.get(row) for row in rows.tolist()])
            # Where p and q are equal up to rounding, (p - q)+ is 0 everywhere: accept the draft.
            tokens[rows] = np.where(drawn >= 0, drawn, np.maximum(0, self._drafts[rows]))
        excluded = self._excluded()
        return [
            DrawnToken(token, is_excluded, distributions.get(row))
            for row, (token, is_excluded) in enumerate(zip(tokens.tolist(), excluded, strict=True))
        ]

    def _rejected(self, rows: Sequence[int]) -> dict[int, SparseDistribution]:
        """Apply modified rejection sampling; return the distributions of rejected drafts, by row.

        A draft x drawn from q is accepted with probability min(1, p(x) / q(x)); its replacement is drawn from
        (p - q)+ (Chen et al., 2302.01318).
        """
        if not rows:
            return {}
        drafts = self._drafts[rows].tolist()
        proposals = [
            self._requests[row].proposal or SparseDistribution((draft,), (1.0,))
            for row, draft in zip(rows, drafts, strict=True)
        ]
        q = [each.probabilities[each.ids.index(draft)] for each, draft in zip(proposals, drafts, strict=True)]
        index = np.array(rows)
        thresholds = uniform(self._keys(index, [Domain.ACCEPTANCE] * len(rows))) * q
        accepted = self._candidates.accepts(index, self._drafts[index], thresholds).tolist()
        return {row: q for row, q, ok in zip(rows, proposals, accepted, strict=True) if not ok}

    def _truncated(self, rows: Sequence[int]) -> dict[int, SparseDistribution]:
        """Return the distributions of the most likely tokens, renormalised, by row."""
        if not rows:
            return {}
        ids, logits = self._candidates.leading(np.array(rows))
        temperatures = np.array([[self._requests[row].sampling.temperature] for row in rows])
        scaled = logits / temperatures
        weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        probabilities = weights / weights.sum(axis=1, keepdims=True)
        return {
            row: SparseDistribution(tuple(ids[index][is_kept].tolist()), tuple(p[is_kept].tolist()))
            for index, (row, p, is_kept) in enumerate(zip(rows, probabilities, weights > 0, strict=True))
        }

    def _propose(self, distributions: Mapping[int, SparseDistribution]) -> Ints:
        """Draw a draft from each distribution."""
        rows = list(distributions)
        ids = np.zeros((len(rows), MOST_PROPOSED), dtype=np.int64)
        log_probs = np.full(ids.shape, -np.inf)
        for index, proposal in enumerate(distributions.values()):
            ids[index, : len(proposal.ids)] = proposal.ids
            log_probs[index, : len(proposal.ids)] = np.log(proposal.probabilities)
        return race_among(
            ids, log_probs, self._keys(np.array(rows, dtype=np.int64), [Domain.DRAFT] * len(rows))
        )

    def _domain(self, row: int, rejected: Mapping[int, SparseDistribution]) -> Domain:
        if not self._requests[row].is_rejection:
            return Domain.SHARED
        return Domain.RESIDUAL if row in rejected else Domain.BONUS

    def _keys(self, rows: Ints, domains: Sequence[Domain]) -> Words:
        """Return the noise keys of some rows, each in its domain."""
        return noise_keys(self._seeds[rows], self._positions[rows], np.array(domains, dtype=np.uint64))

    def _excluded(self) -> list[bool]:
        """Return per row whether its draft is excluded; False where there is none."""
        excluded = np.zeros(len(self._drafts), dtype=np.bool_)
        rows = (self._drafts >= 0).nonzero()[0]
        if rows.size:
            excluded[rows] = self._candidates.excludes(rows, self._drafts[rows])
        return list[bool](excluded.tolist())
