"""Snippets: the parts of earlier responses that best predict the next tokens of a sequence."""

from collections.abc import Iterator, Sequence

from fly.lookup.response_cache import ORDERS, ResponseCache

_LOOK_BACK = 20
"""Number of last tokens of a sequence that are looked up: a draft and its context."""

_BEFORE, _LENGTH = 16, 44
"""Tokens of a snippet before the position that was found, and tokens in total."""

_PER_NGRAM = 4
"""Snippets per n-gram, the latest ones: wording varies."""

_POSITIONS = 16
"""Positions of an n-gram among which snippets that have not been sent are chosen."""


class SnippetRetriever:
    """The search for snippets for one sequence; each snippet is found at most once."""

    def __init__(self, cache: ResponseCache, salt: str) -> None:
        self._cache = cache
        self._salt = salt
        self._sent: set[int] = set()

    def find(self, ids: Sequence[int], max_tokens: int) -> list[tuple[int, ...]]:
        """Return snippets in which the last n-grams of `ids` occur, `max_tokens` in total.

        A response that has overwritten a sent snippet in the cache may be skipped.
        """
        found: list[tuple[int, ...]] = []
        for position in self._positions(ids):
            snippet = self._cache.snippet(position, _BEFORE, min(_LENGTH, max_tokens))
            if position in self._sent or not 2 <= len(snippet) <= max_tokens:
                continue
            self._sent.update(snippet)
            found.append(self._cache.text(snippet))
            max_tokens -= len(snippet)
        return found

    def _positions(self, ids: Sequence[int]) -> Iterator[int]:
        """Yield cache positions, from the end of `ids` backwards; at each end by its longest known n-gram."""
        for end in range(len(ids), max(0, len(ids) - _LOOK_BACK), -1):
            for order in sorted(ORDERS, reverse=True):
                if order < 2 or order > end:
                    continue
                positions = self._cache.positions(tuple(ids[end - order : end]), self._salt, _POSITIONS)
                unsent = [position for position in positions if position not in self._sent]
                yield from unsent[:_PER_NGRAM]
                if positions:
                    break
