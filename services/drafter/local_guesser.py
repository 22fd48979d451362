"""Guesses that a drafter makes beside its model, from the sequence, its drafts, and passages it was told."""

import time
from collections import deque
from collections.abc import Iterable

from fly.known import common_length
from fly.suffix import Passages, SuffixGuesser
from services.drafter.worth import Worth
from services.engine.sequence import EngineSequence


class LocalGuesser:
    """One sequence's guesses, without a question on the wire.

    Belongs to whoever has the sequence, but for `add`, which belongs to the event loop.
    """

    def __init__(self, worth: Worth) -> None:
        self._worth = worth
        self._passages = Passages()
        self._guesser = SuffixGuesser(self._passages)
        self._inbox: deque[tuple[int, ...]] = deque()
        self._decided = 0
        self._last: tuple[int, tuple[int, ...]] | None = None

    def add(self, passages: Iterable[tuple[int, ...]]) -> None:
        """Passages to guess from; they count from the next guess on."""
        self._inbox.extend(passages)

    def guess(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """The likeliest continuation; empty where nothing is likely, or where guessing does not pay."""
        self.judge(sequence)
        if not self._worth.guesses():
            return ()
        started = time.perf_counter()
        self.follow(sequence)
        tokens = self._guesser.guess(max_tokens).tokens
        self._worth.saw_guess(time.perf_counter() - started)
        self._last = len(sequence), tokens
        return tokens

    def follow(self, sequence: EngineSequence) -> None:
        """Takes over what the sequence is by now, and what has been told."""
        while self._inbox:
            self._passages.add(self._inbox.popleft())
        self._guesser.follow(sequence.tokens.ids, self._decided)
        self._decided = sequence.decided

    def judge(self, sequence: EngineSequence) -> None:
        """Takes note of what became of the last guess, while the sequence still has what was made of it."""
        if self._last is not None:
            start, tokens = self._last
            self._last = None
            self._worth.saw_match(common_length(sequence.tokens.ids[start:], tokens))
