"""Outcomes of a verification, ranked by their probability as far as the drafter can tell. Pure.

A round keeps some drafts and adds one token of the target, so the start of the next round is one of a few.
Walk along the draft: at each position the round either ends there, with one of the tokens that the drafter
finds likely, or goes on. The probabilities of both are rates among earlier rounds, by how far the score of a
token lies below the best one.
"""

import math
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fly.noise import Domain, noise_keys, token_noise
from fly.request import SamplingParams

_EDGES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Limits of the classes of gaps, in nats."""
_MOST_RANK = 4
"""Later ranks share the rates of this one."""
_TAIL = 2
"""Last drafts, whose mismatches no window can follow."""
_ENDS = -1
"""Stands in for a rank: the round ends at the position, with any token."""
_MEMORY = 4096
"""Observations of a class after which all of them count half."""
_UNSEEN, _UNSEEN_WEIGHT = 0.05, 1.0
"""Rate of a class without observations, and the observations that it counts as."""
_LEAST = 0.005
"""Smallest probability of an outcome that is worth a branch."""


class Outcome(NamedTuple):
    """The start of the next round: drafts that are kept, negative if earlier tokens go too, and one token."""

    kept: int
    token: int


@dataclass(frozen=True, slots=True)
class Row:
    """The tokens that may be chosen at one position: the drafter's own choice, then the others by score.

    Attributes:
        gaps: Distance of each token's score from the best one, in nats.
    """

    ids: tuple[int, ...]
    gaps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One round with a draft.

    Attributes:
        rows: One per draft token, then one for the token after them; that one is missing if the last draft
            ends the response, or while it is not known.
        num_open: Provisional tokens before the draft; the first one may still be rejected.
        open_row: The row of the first provisional token.
        outcome: The start of the next round; None if the response has ended, or while it is not known.
    """

    num_drafts: int
    rows: tuple[Row, ...]
    num_open: int = 0
    open_row: Row | None = None
    outcome: Outcome | None = None

    def ended(self, kept: int, token: int) -> "Round":
        """Return the round with its outcome."""
        return replace(self, outcome=Outcome(kept, token))


class Step(NamedTuple):
    """A position at which a round may end."""

    kind: str
    kept: int
    row: Row

    @property
    def first_rank(self) -> int:
        """Rank of the first token with which it may end here: a draft token is corrected by another one."""
        return int(self.kind != "bonus")

    def cell(self, rank: int) -> tuple[str, int, int]:
        """Return the class of a token, or of the end with any token, whose rate is counted."""
        nearest = min(max(1, rank), len(self.row.gaps) - 1)
        gap = self.row.gaps[nearest] if nearest else math.inf
        return self.kind, min(rank, _MOST_RANK), bisect(_EDGES, gap)


def steps(round_: Round) -> Iterator[Step]:
    """Yield the positions at which the round may end, in the order in which the rule decides them."""
    if round_.open_row is not None:
        yield Step("open", -round_.num_open, round_.open_row)
    for kept, row in enumerate(round_.rows[: round_.num_drafts]):
        yield Step("draft" if kept < round_.num_drafts - _TAIL else "tail", kept, row)
    for row in round_.rows[round_.num_drafts :]:
        yield Step("bonus", round_.num_drafts, row)


class Likely(NamedTuple):
    """Outcomes with their probabilities, the most likely first.

    Attributes:
        whole: Probability that the whole draft is kept.
    """

    outcomes: tuple[tuple[Outcome, float], ...]
    whole: float

    def worth(self, most: int, row_cost: float) -> list[Outcome]:
        """Return the outcomes that are worth a branch beside the one that keeps the whole draft.

        A branch makes every forward longer, by `row_cost` of a forward of one row. So it must add more to the
        probability of a useful draft than all others lose.
        """
        chosen, covered = list[Outcome](), self.whole
        for outcome, probability in self.outcomes[:most]:
            longer = row_cost / (1 + row_cost * len(chosen))
            if probability < max(_LEAST, covered * longer):
                break
            chosen.append(outcome)
            covered += probability
        return chosen


class OutcomeRates:
    """Rates at which rounds ended, over all sequences of a replica; they forget slowly."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, int, int], list[float]] = {}

    def record(self, round_: Round) -> None:
        """Record a round with its outcome; one without an outcome says nothing."""
        if (outcome := round_.outcome) is None:
            return
        for step in steps(round_):
            ends = outcome.kept == step.kept
            self._add(step.cell(_ENDS), ends)
            for rank in range(step.first_rank, len(step.row.ids)):
                self._add(step.cell(rank), ends and step.row.ids[rank] == outcome.token)
            if ends:
                return

    def likely(self, round_: Round) -> Likely:
        """Return the outcomes of a round with their probabilities."""
        found, reached = dict[Outcome, float](), 1.0
        for step in steps(round_):
            for rank in range(step.first_rank, len(step.row.ids)):
                found[Outcome(step.kept, step.row.ids[rank])] = reached * self._rate(step.cell(rank))
            if step.kind != "bonus":
                reached *= 1 - self._rate(step.cell(_ENDS))
        return Likely(tuple(sorted(found.items(), key=lambda item: -item[1])), reached)

    def _add(self, cell: tuple[str, int, int], has_ended: bool) -> None:
        counts = self._counts.setdefault(cell, [0.0, 0.0])
        counts[0] += 1
        counts[1] += has_ended
        if counts[0] >= _MEMORY:
            counts[:] = counts[0] / 2, counts[1] / 2

    def _rate(self, cell: tuple[str, int, int]) -> float:
        """Return a rate, which is low but not 0 where nothing was seen."""
        seen, ended = self._counts.get(cell, (0.0, 0.0))
        return (ended + _UNSEEN * _UNSEEN_WEIGHT) / (seen + _UNSEEN_WEIGHT)


def make_row(
    choice: int, ranked: Sequence[tuple[int, float]], sampling: SamplingParams, position: int, most: int
) -> Row:
    """Return the tokens that the target may choose at a position, as far as the drafter can tell.

    The score of a token is its log-probability by the drafter; above temperature 0 it is divided by that,
    and the noise that drafter and target share is added.

    Args:
        choice: The drafter's own choice.
        ranked: Likely tokens with their log-probabilities.
        sampling: The parameters of the response.
        position: Position of the token, which the noise depends on.
        most: Largest number of tokens to return.
    """
    if sampling.temperature == 0:
        scored = dict(ranked)
    else:
        ids = np.array([token for token, _ in ranked])
        keys = (np.array([word], dtype=np.uint64) for word in (sampling.seed or 0, position, Domain.SHARED))
        noise = token_noise(ids[None], noise_keys(*keys))[0]
        logprobs = np.array([logprob for _, logprob in ranked], dtype=np.float64)
        scored = dict(zip(ids.tolist(), (logprobs / sampling.temperature + noise).tolist(), strict=True))
    best = max(scored.values(), default=0.0)
    others = sorted((token for token in scored if token != choice), key=lambda token: -scored[token])
    kept = others[: most - 1]
    return Row((choice, *kept), (0.0, *(best - scored[token] for token in kept)))
