"""The most tokens per second that prepared outcomes can give, from the costs of forwards. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.scenarios.outcomes.ranking import Answer
from flyserve.bench.statistics import share


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of forwards of a pair.

    Attributes:
        drafter_s: A forward of the drafter by the number of its sequences, one token row each.
        verify_s: A verification by the number of drafts.
    """

    name: str
    drafter_s: dict[int, float]
    verify_s: dict[int, float]


class Way(NamedTuple):
    """A use of the time in which the target verifies.

    Attributes:
        branches: Outcomes that are prepared; None is drafting ahead as it is today, 0 nothing.
    """

    branches: int | None

    @property
    def rows(self) -> int:
        """Sequences of a forward that prepares."""
        return self.branches or 1


NOTHING, AHEAD = Way(0), Way(None)


class Totals(NamedTuple):
    """Sums over responses.

    Attributes:
        full: Rounds whose start was prepared, after a draft that was kept as a whole.
        partial: Rounds whose start was prepared, after any other draft.
    """

    tokens: int
    rounds: int
    full: int
    partial: int


def totals(answer: Answer, way: Way) -> Totals:
    """Return the figures of one response."""
    prepared = [
        start
        for start in answer.starts
        if (start.is_ahead if way is AHEAD else start.place is not None and start.place < way.rows)
        and way != NOTHING
    ]
    full = sum(start.is_full for start in prepared)
    return Totals(answer.tokens, answer.rounds, full, len(prepared) - full)


def summed(parts: Iterable[Totals]) -> Totals:
    """Return the sums of some responses."""
    return Totals(*map(sum, zip(*parts, strict=True)))


def round_s(costs: Costs, draft_length: int, way: Way, found: Totals, between_s: float) -> float:
    """Return the mean time of a round.

    While the target verifies, n = (V + B) / D(F) forwards, rounded down, prepare F outcomes, each with a row.
    A prepared start saves the forwards of min(K, n) drafts; after a whole draft the first of the n forwards
    finds the token that follows it, so that n - 1 are left. All else is drafted after the verification.
    """
    elapsed_s = costs.verify_s[draft_length] + between_s
    num_forwards = int(elapsed_s / costs.drafter_s[way.rows])
    saved = share(
        found.partial * min(draft_length, num_forwards)
        + found.full * min(draft_length, max(0, num_forwards - 1)),
        found.rounds,
    )
    return elapsed_s + (draft_length - saved) * costs.drafter_s[1]


def speed(costs: Costs, draft_length: int, way: Way, parts: Sequence[Totals], between_s: float) -> float:
    """Return the tokens per second."""
    found = summed(parts)
    return share(found.tokens, found.rounds * round_s(costs, draft_length, way, found, between_s))
