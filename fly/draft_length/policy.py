"""The interface that chooses the length of a sequence's drafts, and the fixed length."""

import math
from typing import Protocol

from fly.messages import Draft, Verification
from fly.round_record import RoundRecord


class DraftLength(Protocol):
    """The policy that chooses the length of one sequence's drafts, round by round.

    The calls of one round, in order: `choose`; `record_draft` if a draft arrived; `record_verification`;
    `record_round` unless it was the last round.
    """

    @property
    def is_exploring(self) -> bool:
        """True if the round's draft is only requested to learn what it costs and gains."""
        return False

    @property
    def most_steps(self) -> float:
        """Most tokens that the target may decode in a round without a draft, before the next choice."""
        return math.inf

    def choose(self) -> int:
        """Return the number of draft tokens to request now; 0 decodes this round plainly."""

    def record(self, round: RoundRecord) -> None:
        """Record a round; the verification of a draft that cost nothing says nothing about a drafter."""
        for arrived in round.arrived:
            self.record_draft(arrived.whole, arrived.spent_s)
        if round.is_free or round.answer is None:
            return
        self.record_verification(round.answer, round.answer_s, round.num_steps)
        if not round.is_last:
            self.record_round(round.start, len(round.drafts), round.decided_length, round.is_open)

    def record_draft(self, draft: Draft, spent_s: float) -> None:
        """Record a draft that arrived `spent_s` seconds after its request."""
        return None

    def record_verification(self, verification: Verification, spent_s: float, num_steps: int = 1) -> None:
        """Record the target's verification, which arrived `spent_s` seconds after its request.

        In a round without drafts it is a step in which the target decoded `num_steps` tokens by itself.
        """
        return None

    def record_round(self, start: int, num_drafts: int, decided_length: int, is_open: bool) -> None:
        """Record the end of a round after which the sequence continues.

        Args:
            start: Length of the sequence before the draft, in tokens, including provisional tokens.
            num_drafts: Draft tokens that were verified.
            decided_length: Tokens of the sequence that will never be rolled back.
            is_open: Provisional tokens follow them; a later round decides these.
        """
        return None


class FixedLength(DraftLength):
    """A policy with the same length in every round; it records nothing."""

    def __init__(self, length: int) -> None:
        self._length = length

    def choose(self) -> int:
        return self._length

    def record(self, round: RoundRecord) -> None:
        return None
