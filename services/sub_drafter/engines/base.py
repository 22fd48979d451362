"""The interface of a look-up engine, and of one sequence in it."""

from collections.abc import Sequence
from typing import Protocol

from fly.lookup.ngram import Proposal
from fly.messages import Open


class SequenceLookup(Protocol):
    """A sequence at an engine."""

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        """Set the sequence to `ids`; its first `unchanged` tokens are as before."""

    def propose(self, max_tokens: int) -> Proposal:
        """Return a continuation of at most `max_tokens` tokens; empty if none is likely."""

    def snippets(self, max_tokens: int) -> list[tuple[int, ...]]:
        """Return snippets of finished responses, `max_tokens` in total, each at most once per sequence.

        The drafter makes proposals from them itself.
        """

    def finish(self, response: Sequence[int]) -> None:
        """End the sequence; called once, as the last call.

        `response` holds the decided tokens of the response, after the last few tokens of the prompt.
        """


class ProposalEngine(Protocol):
    """A look-up engine for many sequences."""

    def open(self, opening: Open) -> SequenceLookup:
        """Return a new, empty sequence."""

    @property
    def response_cache_tokens(self) -> int:
        """Tokens of finished responses in the cache at present."""

    @property
    def response_cache_capacity(self) -> int:
        """Most tokens of finished responses that the cache holds; 0 without a cache."""
