"""Prompt look-up: what followed the last time that the sequence ended like this (a hash index)."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

_RECENT = 8
"""Earlier occurrences that the confidence is estimated from."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A continuation found by look-up.

    Attributes:
        tokens: The proposed ids; empty without a match.
        match_length: Length of the matched suffix.
        confidence: Estimated probability that the first token is right.
    """

    tokens: tuple[int, ...] = ()
    match_length: int = 0
    confidence: float = 0.0


class NgramIndex:
    """An index of one growing sequence by its n-grams, the longest suffix first.

    Appending, truncating and matching cost O(orders) per token. Suffixes of `max_ngram` down to `min_ngram`
    tokens are tried; of several earlier occurrences the latest is continued.
    """

    def __init__(self, min_ngram: int = 2, max_ngram: int = 5) -> None:
        self._orders = range(max_ngram, min_ngram - 1, -1)
        self._ids: list[int] = []
        # Per n-gram the positions that followed it, ascending; truncation pops them in reverse order.
        self._followers: dict[tuple[int, ...], list[int]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: Iterable[int]) -> None:
        for token in ids:
            for ngram in self._suffixes():
                self._followers[ngram].append(len(self._ids))
            self._ids.append(token)

    def truncate(self, length: int) -> None:
        """Forgets all tokens from position `length` on."""
        while len(self._ids) > length:
            self._ids.pop()
            for ngram in self._suffixes():
                positions = self._followers[ngram]
                positions.pop()
                if not positions:
                    del self._followers[ngram]

    def propose(self, max_tokens: int) -> Proposal:
        """The continuation of the longest suffix that occurred before, at most `max_tokens` long."""
        if max_tokens < 1:
            return Proposal()
        for ngram in self._suffixes():
            if ngram in self._followers:
                positions = self._followers[ngram]
                return Proposal(
                    self._continuation(positions[-1], max_tokens), len(ngram), self._confidence(positions)
                )
        return Proposal()

    def _suffixes(self) -> Iterable[tuple[int, ...]]:
        length = len(self._ids)
        for order in self._orders:
            if order <= length:
                yield tuple(self._ids[length - order :])

    def _continuation(self, start: int, max_tokens: int) -> tuple[int, ...]:
        """The tokens from `start` on; beyond the end the period that led there goes on."""
        period = len(self._ids) - start
        return tuple(self._ids[start + offset % period] for offset in range(max_tokens))

    def _confidence(self, positions: list[int]) -> float:
        """How often the recent occurrences went on like the latest (with one doubt added)."""
        recent = [self._ids[position] for position in positions[-_RECENT:]]
        return recent.count(recent[-1]) / (len(recent) + 1)
