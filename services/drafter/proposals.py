"""Local proposals: made by the drafter without its model, from the sequence, its drafts and snippets."""

import time
from collections import deque
from collections.abc import Iterable

from fly.sequence import common_length
from services.drafter.cost_model import ProposalBenefit
from services.engine.sequence import EngineSequence
from services.lookup.index.budget import IndexShare
from services.lookup.index.suffix import Snippets, SuffixProposer

_MOST_DISTRUSTED = 255
"""Most repeats that are left out after one that was wrong."""


class LocalProposer:
    """Proposals for one sequence without a request on the wire.

    It belongs to the thread that holds the sequence, except `add_snippets`, which the event loop calls.

    Attributes:
        is_repeating: The last continuation of a long repeat was right.
    """

    def __init__(self, benefit: ProposalBenefit, share: IndexShare) -> None:
        self._benefit = benefit
        self._snippets = Snippets(share)
        self._proposer = SuffixProposer(self._snippets, share=share)
        self._inbox: deque[tuple[int, ...]] = deque()
        self._decided = 0
        self._last: tuple[int, tuple[int, ...]] | None = None
        self._repeat: tuple[int, tuple[int, ...]] | None = None
        self._distrust = self._num_distrusted = 0
        self.is_repeating = False

    def add_snippets(self, snippets: Iterable[tuple[int, ...]]) -> None:
        """Add snippets; the next proposal uses them."""
        self._inbox.extend(snippets)

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """Return the most likely continuation; empty if none is likely, or if proposing is unprofitable."""
        self.record_matches(sequence)
        if not self._benefit.should_propose():
            return ()
        started = time.perf_counter()
        self.follow(sequence)
        tokens = self._proposer.propose(max_tokens)
        self._benefit.record_local_proposal(time.perf_counter() - started)
        self._last = len(sequence), tokens
        return tokens

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
            self._benefit.record_repeat(len(tokens))
        else:
            self._distrust = self._num_distrusted = min(_MOST_DISTRUSTED, 2 * self._distrust + 1)

    def follow(self, sequence: EngineSequence) -> None:
        """Index the new tokens of the sequence and the snippets that have arrived."""
        while self._inbox:
            self._snippets.add(self._inbox.popleft())
        self._proposer.follow(sequence.tokens.ids, self._decided)
        self._decided = sequence.decided

    def record_matches(self, sequence: EngineSequence) -> None:
        """Record the outcome of the last proposal while the sequence still contains its result."""
        if self._last is not None:
            start, tokens = self._last
            self._last = None
            self._benefit.record_local_matches(common_length(sequence.tokens.ids[start:], tokens))
