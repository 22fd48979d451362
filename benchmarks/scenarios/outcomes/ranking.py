"""Recorded rounds, and what the drafter could have foreseen of their outcomes. Pure.

Outcomes are ranked as the drafter's service ranks them, by the rates of the rounds of other responses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.drafter.outcomes import Outcome, OutcomeRates, Round, steps

_FOLDS = 2


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


def rank(responses: Sequence[Response]) -> list[Answer]:
    """Rank every round's outcomes by the rates in responses of the other half."""
    folds = [OutcomeRates() for _ in range(_FOLDS)]
    for number, response in enumerate(responses):
        for fold, rates in enumerate(folds):
            for each in response.rounds if number % _FOLDS != fold else ():
                rates.record(each)
    return [
        Answer(
            response.tokens,
            len(response.rounds),
            tuple(
                make_start(each, each.outcome, ranked(each, folds[number % _FOLDS]))
                for each in response.rounds
                if each.outcome is not None
            ),
        )
        for number, response in enumerate(responses)
    ]


def ranked(round_: Round, rates: OutcomeRates) -> list[Outcome]:
    """Return the outcomes of a round, the most likely first."""
    return [outcome for outcome, _ in rates.likely(round_).outcomes]


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
