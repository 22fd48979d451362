"""Outcomes of a round, ranked by their probability as far as the drafter can tell. Pure.

A round keeps some drafts and adds one token of the target, so the start of the next round is one of a few.
Walk along the draft: at each position the round either ends there, with one of the tokens that the drafter
finds likely, or goes on. The probabilities of both are frequencies among recorded rounds, by how far the
score of a token lies below the best one.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_EDGES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
"""Limits of the classes of gaps, in nats."""
_MOST_RANK = 4
"""Later ranks share the frequencies of this one."""
_TAIL = 2
"""Last drafts, whose mismatches no window can follow."""
_FOLDS = 2
_ENDS = -1
"""Stands in for a rank: the round ends at the position, with any token."""


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
            ends the response.
        num_open: Provisional tokens before the draft; the first one may still be rejected.
        open_row: The row of the first provisional token.
        outcome: The start of the next round; None if the response has ended.
    """

    num_drafts: int
    rows: tuple[Row, ...]
    num_open: int
    open_row: Row | None
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Response:
    """The rounds of one response, and the tokens that they emitted."""

    seed: int
    tokens: int
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a round that follows another one, as the drafter could have foreseen it.

    Attributes:
        place: Number of outcomes that seemed more likely; None if it was not among them.
        rank: Rank of its token at its position; None if it was not among those that are kept.
        is_full: The whole draft before it was kept.
        is_ahead: It is what drafting ahead assumes: the whole draft and the drafter's own next token.
    """

    place: int | None
    rank: int | None
    is_full: bool
    is_ahead: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The figures of one response: tokens of its rounds with a draft, these rounds, starts but the first."""

    tokens: int
    rounds: int
    starts: tuple[Start, ...]


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
        """Return the class of a token, or of the end with any token, whose frequency is counted."""
        nearest = min(max(1, rank), len(self.row.gaps) - 1)
        return self.kind, min(rank, _MOST_RANK), bisect(_EDGES, self.row.gaps[nearest])


def steps(round_: Round) -> Iterator[Step]:
    """Yield the positions at which the round may end, in the order in which the rule decides them."""
    if round_.open_row is not None:
        yield Step("open", -round_.num_open, round_.open_row)
    for kept, row in enumerate(round_.rows[: round_.num_drafts]):
        yield Step("draft" if kept < round_.num_drafts - _TAIL else "tail", kept, row)
    for row in round_.rows[round_.num_drafts :]:
        yield Step("bonus", round_.num_drafts, row)


class Frequencies:
    """Frequencies of the ends of recorded rounds."""

    def __init__(self, rounds: Sequence[Round]) -> None:
        self._seen, self._ended = Counter[tuple[str, int, int]](), Counter[tuple[str, int, int]]()
        for round_ in rounds:
            if round_.outcome is not None:
                self._count(round_, round_.outcome)

    def ranked(self, round_: Round) -> list[Outcome]:
        """Return the outcomes of a round, the most likely first."""
        found, reached = dict[Outcome, float](), 1.0
        for step in steps(round_):
            for rank in range(step.first_rank, len(step.row.ids)):
                outcome = Outcome(step.kept, step.row.ids[rank])
                found[outcome] = reached * self._rate(step.cell(rank))
            reached *= 1 - self._rate(step.cell(_ENDS))
        return sorted(found, key=lambda outcome: -found[outcome])

    def _count(self, round_: Round, outcome: Outcome) -> None:
        for step in steps(round_):
            ends = outcome.kept == step.kept
            self._add(step.cell(_ENDS), ends)
            for rank in range(step.first_rank, len(step.row.ids)):
                self._add(step.cell(rank), ends and step.row.ids[rank] == outcome.token)
            if ends:
                return

    def _add(self, cell: tuple[str, int, int], has_ended: bool) -> None:
        self._seen[cell] += 1
        self._ended[cell] += has_ended

    def _rate(self, cell: tuple[str, int, int]) -> float:
        """Return a frequency, which is low but not 0 where nothing was seen."""
        return (self._ended[cell] + 0.05) / (self._seen[cell] + 1)


def rank(responses: Sequence[Response]) -> list[Answer]:
    """Rank every round's outcomes by the frequencies in responses of the other half."""
    folds = [
        Frequencies(
            [
                each
                for number, other in enumerate(responses)
                if number % _FOLDS != fold
                for each in other.rounds
            ]
        )
        for fold in range(_FOLDS)
    ]
    return [
        Answer(
            response.tokens,
            len(response.rounds),
            tuple(
                make_start(each, each.outcome, folds[number % _FOLDS].ranked(each))
                for each in response.rounds
                if each.outcome is not None
            ),
        )
        for number, response in enumerate(responses)
    ]


def make_start(round_: Round, outcome: Outcome, ranked: Sequence[Outcome]) -> Start:
    """Return what the drafter could have foreseen of the outcome."""
    ids = next((step.row.ids for step in steps(round_) if step.kept == outcome.kept), ())
    is_full = outcome.kept == round_.num_drafts
    rank = ids.index(outcome.token) if outcome.token in ids else None
    return Start(
        place=ranked.index(outcome) if outcome in ranked else None,
        rank=rank,
        is_full=is_full,
        is_ahead=is_full and rank == 0,
    )
