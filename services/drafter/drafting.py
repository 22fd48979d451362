"""Drafting: the speculation loop one level down; the sub-drafter proposes, the drafter scores exactly."""

from dataclasses import dataclass
from typing import Protocol

from fly.rule import count_native
from fly.types import SparseDistribution
from services.engine.base import Job
from services.engine.sequence import EngineSequence


class Guesser(Protocol):
    """A sub-drafter beside the engine: asked without waiting, its answer is used once it is there."""

    def take(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """What of the latest answer still continues the sequence, at most `max_tokens`.

        Where nothing does, because the answer is used up or contradicted, it asks for another and returns
        nothing: the model goes on alone while the question is on its way.
        """


class NoGuesser:
    """Stands for the absent sub-drafter."""

    def take(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Drafted:
    """A draft and how it was made.

    Attributes:
        tokens: In order.
        forwards: Of the model.
        supplied: Tokens that the sub-drafter supplied.
        distributions: What each token was drawn from, where a target will ask for it.
    """

    tokens: tuple[int, ...]
    forwards: int
    supplied: int
    distributions: tuple[SparseDistribution, ...] = ()


def draft(
    sequence: EngineSequence, max_tokens: int, ending_ids: frozenset[int], guesser: Guesser
) -> Job[Drafted]:
    """Proposes at most `max_tokens` tokens after the sequence, and leaves them appended to it.

    Each forward scores the sub-drafter's guess and keeps what equals the model's own choices, or draws, plus
    one token, so the draft is the same whatever is guessed.

    Args:
        sequence: What precedes the draft.
        max_tokens: Longest draft.
        ending_ids: Tokens behind which it ends.
        guesser: The sub-drafter.
    """
    start, forwards, supplied = len(sequence), 0, 0
    distributions: list[SparseDistribution] = []
    while (room := max_tokens - (len(sequence) - start)) > 0:
        guess = guesser.take(sequence, room - 1)
        sequence.extend(guess)
        scores = yield from sequence.score(len(guess) + 1, is_proposing=True)
        forwards += 1
        matched = count_native(guess, scores.choices)
        sequence.truncate(len(sequence) - len(guess) + matched)
        sequence.extend(scores.choices[matched : matched + 1])
        distributions += scores.distributions[: matched + 1]
        supplied += matched
        if ends := _ending(sequence.tokens.ids[start:], ending_ids):
            sequence.truncate(start + ends)
            break
    tokens = tuple(sequence.tokens.ids[start:])
    return Drafted(tokens, forwards, supplied, tuple(distributions[: len(tokens)]))


def _ending(drafted: list[int], ending_ids: frozenset[int]) -> int:
    """Length of the draft up to and with its first ending token; 0 without one."""
    if not ending_ids:
        return 0
    return next((index + 1 for index, token in enumerate(drafted) if token in ending_ids), 0)
