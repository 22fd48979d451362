"""Drafting: the speculation loop one level down; the sub-drafter proposes, the drafter scores exactly."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fly.rule import count_matches
from fly.types import SparseDistribution
from services.engine.base import Job
from services.engine.sequence import EngineSequence


class Proposer(Protocol):
    """A sub-drafter beside the engine: asked without waiting, its answer is used once it is there."""

    def take(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """What of the latest answer still continues the sequence, at most `max_tokens`.

        Where nothing does, because the answer is used up or contradicted, it may ask for another and returns
        nothing: the model goes on alone while the question is on its way.
        """

    @property
    def is_worth_waiting(self) -> bool:
        """A question is on its way whose answer should come sooner than a forward would end."""


class NullProposer:
    """Stands for the absent sub-drafter."""

    is_worth_waiting = False

    def take(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        return ()


@dataclass(frozen=True, slots=True)
class Drafted:
    """A draft and how it was made.

    Attributes:
        tokens: In order.
        forwards: Of the model.
        sub_drafter_tokens: Tokens that the sub-drafter supplied.
        distributions: What each token was drawn from, where a target will ask for it.
    """

    tokens: tuple[int, ...]
    forwards: int
    sub_drafter_tokens: int
    distributions: tuple[SparseDistribution, ...] = ()


class Drafting:
    """One draft in the making: at most `max_tokens` tokens after a sequence, left appended to it.

    Each forward scores the sub-drafter's proposal and keeps what equals the model's own choices, or draws,
    plus one token, so the draft is the same whatever is proposed, and however often its job is
    ended and resumed.

    Attributes:
        start: Length of the sequence without the draft.
        max_tokens: Longest draft.
        ending_ids: Tokens behind which it ends.
        forwards: Of the model, so far.
    """

    def __init__(
        self, sequence: EngineSequence, max_tokens: int, ending_ids: frozenset[int], proposer: Proposer
    ) -> None:
        self.start = len(sequence)
        self.max_tokens = max_tokens
        self.ending_ids = ending_ids
        self.forwards = 0
        self._sequence = sequence
        self._proposer = proposer
        self._sub_drafter_tokens = 0
        self._distributions: list[SparseDistribution] = []
        self._has_ended = False

    @property
    def num_tokens(self) -> int:
        """Drafted so far."""
        return len(self._sequence) - self.start

    @property
    def room(self) -> int:
        """Tokens that may still be drafted."""
        return 0 if self._has_ended else self.max_tokens - self.num_tokens

    def job(self, may_pause: bool = False) -> Job[None]:
        """Drafts to the end; one that may pause returns where an answer is worth waiting for."""
        while self.room > 0:
            proposal = self._proposer.take(self._sequence, self.room - 1)
            if may_pause and not proposal and self._proposer.is_worth_waiting:
                return
            yield from self._forward(proposal)

    def result(self) -> Drafted:
        """What has been drafted so far."""
        tokens = tuple(self._sequence.tokens.ids[self.start :])
        return Drafted(
            tokens, self.forwards, self._sub_drafter_tokens, tuple(self._distributions[: len(tokens)])
        )

    def advance(self, start: int, max_tokens: int) -> None:
        """What was drafted up to `start` is no draft any more: the sequence has come to the same."""
        del self._distributions[: start - self.start]
        self.start, self.max_tokens = start, max_tokens
        self._has_ended = self._has_ended and self.num_tokens > 0
        if self.num_tokens > max_tokens:
            self._sequence.truncate(start + max_tokens)

    def _forward(self, proposal: Sequence[int]) -> Job[None]:
        length = len(self._sequence)
        self._sequence.extend(proposal)
        try:
            scores = yield from self._sequence.score(len(proposal) + 1, is_proposing=True)
        except BaseException:  # also a job that is ended: a proposal is not part of the sequence
            self._sequence.truncate(length)
            raise
        self.forwards += 1
        matched = count_matches(proposal, scores.choices)
        self._sequence.truncate(length + matched)
        self._sequence.extend(scores.choices[matched : matched + 1])
        self._distributions += scores.distributions[: matched + 1]
        self._sub_drafter_tokens += matched
        self._end_at_stop()

    def _end_at_stop(self) -> None:
        drafted = self._sequence.tokens.ids[self.start :]
        ends = next((index + 1 for index, token in enumerate(drafted) if token in self.ending_ids), 0)
        if ends:
            self._sequence.truncate(self.start + ends)
            self._has_ended = True


def draft(
    sequence: EngineSequence, max_tokens: int, ending_ids: frozenset[int], proposer: Proposer
) -> Job[Drafted]:
    """Proposes at most `max_tokens` tokens after the sequence, as `Drafting` does, in one job."""
    drafting = Drafting(sequence, max_tokens, ending_ids, proposer)
    yield from drafting.job()
    return drafting.result()
