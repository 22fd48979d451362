"""The interface of a look-up engine: what it knows of one sequence, and what all sequences share."""

from collections.abc import Sequence
from typing import Protocol

from fly.lookup.ngram import Proposal
from fly.messages import Open


class SequenceLookup(Protocol):
    """One sequence at an engine."""

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        """The sequence is `ids` from now on; its first `unchanged` tokens are as they were."""

    def propose(self, max_tokens: int) -> Proposal:
        """How it may go on, in at most `max_tokens`; empty where nothing is likely."""

    def snippets(self, max_tokens: int) -> list[tuple[int, ...]]:
        """Snippets of finished responses from which others may proposal, `max_tokens` in all; none twice."""

    def finish(self, response: Sequence[int]) -> None:
        """The sequence is over; `response` is what was decided of it, with a few tokens of the prompt before.

        Called once, last.
        """


class ProposalEngine(Protocol):
    """Proposals for many sequences."""

    def open(self, opening: Open) -> SequenceLookup:
        """A new sequence, still empty."""

    @property
    def response_cache_tokens(self) -> int:
        """Tokens of finished responses that are held at present."""
