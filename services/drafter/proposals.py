"""Proposals that a drafter makes without its model: from the sequence, its drafts and snippets."""

from collections import deque
from collections.abc import Iterable

from flyserve.core.sequence import common_length
from services.drafter.sub_drafter_use import SubDrafterUse
from services.engine.sequence import EngineSequence
from services.lookup.index.budget import IndexShare
from services.lookup.index.suffix import Snippets, SuffixProposer

_MOST_DISTRUSTED = 255
"""Most repeats that are left out after one that was wrong."""


class Proposals:
    """Proposals for one sequence without a request on the wire.

    They belong to the thread that holds the sequence, except `add_snippets`, which the event loop calls.

    Attributes:
        is_repeating: The last continuation of a long repeat was right.
    """

    def __init__(self, use: SubDrafterUse, share: IndexShare) -> None:
        self._use = use
        self._snippets = Snippets(share)
        self._proposer = SuffixProposer(self._snippets, share=share)
        self._inbox: deque[tuple[int, ...]] = deque()
        self._decided = 0
        self._repeat: tuple[int, tuple[int, ...]] | None = None
        self._distrust = self._num_distrusted = 0
        self.is_repeating = False

    def add_snippets(self, snippets: Iterable[tuple[int, ...]]) -> None:
        """Add snippets; the next proposal uses them."""
        self._inbox.extend(snippets)

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """Return the most likely continuation; empty if none is likely."""
        self.follow(sequence)
        return self._proposer.propose(max_tokens)

    def repeat(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """Return the continuation of a long repeat of another response; empty after one that was wrong."""
        self._judge_repeat(sequence)
        if not self._inbox and not self._snippets:
            return ()
        if self._num_distrusted:
            self._num_distrusted -= 1
            return ()
        self.follow(sequence)
        tokens = self._proposer.repeat(max_tokens)
        if tokens and self._repeat is None:
            self._repeat = len(sequence), tokens
        return tokens

    def _judge_repeat(self, sequence: EngineSequence) -> None:
        """Compare the last repeat with the tokens that were decided in its place."""
        if self._repeat is None or sequence.decided <= self._repeat[0]:
            return
        (start, tokens), self._repeat = self._repeat, None
        decided = sequence.tokens.ids[start : sequence.decided]
        self.is_repeating = common_length(decided, tokens) == min(len(decided), len(tokens))
        if self.is_repeating:
            self._distrust = 0
            self._use.record_repeat()
        else:
            self._distrust = self._num_distrusted = min(_MOST_DISTRUSTED, 2 * self._distrust + 1)

    def follow(self, sequence: EngineSequence) -> None:
        """Index the new tokens of the sequence and the snippets that have arrived."""
        while self._inbox:
            self._snippets.add(self._inbox.popleft())
        self._proposer.follow(sequence.tokens.ids, self._decided)
        self._decided = sequence.decided
