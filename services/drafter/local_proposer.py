"""Proposals that a drafter makes without its model: from the sequence, its drafts and received snippets."""

import time
from collections import deque
from collections.abc import Iterable

from fly.lookup.suffix import Snippets, SuffixProposer
from fly.sequence import common_length
from services.drafter.worth import Worth
from services.engine.sequence import EngineSequence


class LocalProposer:
    """One sequence's proposals, without a question on the wire.

    Belongs to whoever has the sequence, but for `add`, which belongs to the event loop.
    """

    def __init__(self, worth: Worth) -> None:
        self._worth = worth
        self._snippets = Snippets()
        self._proposer = SuffixProposer(self._snippets)
        self._inbox: deque[tuple[int, ...]] = deque()
        self._decided = 0
        self._last: tuple[int, tuple[int, ...]] | None = None

    def add(self, snippets: Iterable[tuple[int, ...]]) -> None:
        """Snippets to proposal from; they count from the next proposal on."""
        self._inbox.extend(snippets)

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """The likeliest continuation; empty where nothing is likely, or where proposing does not pay."""
        self.judge(sequence)
        if not self._worth.proposals():
            return ()
        started = time.perf_counter()
        self.follow(sequence)
        tokens = self._proposer.propose(max_tokens).tokens
        self._worth.saw_proposal(time.perf_counter() - started)
        self._last = len(sequence), tokens
        return tokens

    def follow(self, sequence: EngineSequence) -> None:
        """Takes over what the sequence is by now, and what has been told."""
        while self._inbox:
            self._snippets.add(self._inbox.popleft())
        self._proposer.follow(sequence.tokens.ids, self._decided)
        self._decided = sequence.decided

    def judge(self, sequence: EngineSequence) -> None:
        """Record the outcome of the last proposal while the sequence still contains its result."""
        if self._last is not None:
            start, tokens = self._last
            self._last = None
            self._worth.saw_match(common_length(sequence.tokens.ids[start:], tokens))
