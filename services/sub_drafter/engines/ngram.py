"""The engine `ngram`: prompt look-up within each sequence; nothing is shared."""

from collections.abc import Sequence

from fly.lookup import Guess, LookupIndex
from fly.messages import Open


class NgramLookup:
    """One sequence, indexed by its n-grams."""

    def __init__(self, index: LookupIndex) -> None:
        self._index = index

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        self._index.truncate(unchanged)
        self._index.extend(ids[len(self._index) :])

    def guess(self, max_tokens: int) -> Guess:
        return self._index.guess(max_tokens)

    def passages(self, max_tokens: int) -> list[tuple[int, ...]]:
        return []

    def finish(self, response: Sequence[int]) -> None:
        """Remembers nothing."""


class NgramEngine:
    """Continues the latest earlier occurrence of the longest matching suffix."""

    memory_tokens = 0

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._orders = min_ngram, max_ngram

    def open(self, opening: Open) -> NgramLookup:
        return NgramLookup(LookupIndex(*self._orders))
