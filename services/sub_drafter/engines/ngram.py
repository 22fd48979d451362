"""The engine `ngram`: prompt look-up within each sequence; nothing is shared."""

from collections.abc import Sequence

from fly.lookup.ngram import NgramIndex, Proposal
from fly.messages import Open


class NgramLookup:
    """One sequence, indexed by its n-grams."""

    def __init__(self, index: NgramIndex) -> None:
        self._index = index

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        self._index.truncate(unchanged)
        self._index.extend(ids[len(self._index) :])

    def propose(self, max_tokens: int) -> Proposal:
        return self._index.propose(max_tokens)

    def snippets(self, max_tokens: int) -> list[tuple[int, ...]]:
        return []

    def finish(self, response: Sequence[int]) -> None:
        """Remembers nothing."""


class NgramEngine:
    """Continues the latest earlier occurrence of the longest matching suffix."""

    response_cache_tokens = 0

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._orders = min_ngram, max_ngram

    def open(self, opening: Open) -> NgramLookup:
        return NgramLookup(NgramIndex(*self._orders))
