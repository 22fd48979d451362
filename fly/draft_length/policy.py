"""Who chooses the length of a sequence's drafts: the interface, and the simplest policy."""

from typing import Protocol

from fly.messages import Draft, Verification


class DraftLength(Protocol):
    """Chooses the length of one sequence's drafts, round by round.

    A round is: `choose`, then `drafted` where a draft came, `verified`, and `decided` unless it was the last.
    """

    def choose(self) -> int:
        """Draft tokens to ask for now; 0 decodes this round plainly."""

    def drafted(self, draft: Draft, spent_s: float) -> None:
        """A draft came, `spent_s` after it was asked for."""

    def verified(self, verification: Verification, spent_s: float) -> None:
        """The target answered, `spent_s` after it was asked."""

    def decided(self, start: int, num_drafts: int, decided_length: int, is_open: bool) -> None:
        """The round is over and the sequence goes on.

        Args:
            start: Length of the sequence, provisional tokens included, before the draft.
            num_drafts: Drafts that were verified.
            decided_length: Tokens of the sequence that will never be rolled back.
            is_open: Provisional tokens follow them, whose fate a later round decides.
        """


class FixedLength:
    """Always the same."""

    def __init__(self, length: int) -> None:
        self._length = length

    def choose(self) -> int:
        return self._length

    def drafted(self, draft: Draft, spent_s: float) -> None:
        return None

    def verified(self, verification: Verification, spent_s: float) -> None:
        return None

    def decided(self, start: int, num_drafts: int, decided_length: int, is_open: bool) -> None:
        return None
