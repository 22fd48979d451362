"""Which snippets of earlier responses tell most about how a sequence may go on."""

from collections.abc import Iterator, Sequence

from fly.lookup.response_cache import ORDERS, ResponseCache

_LOOK_BACK = 20
"""Last tokens of a sequence that snippets are looked for: a draft, and what it followed."""

_BEFORE, _LENGTH = 16, 44
"""Tokens of a snippet before the place that was looked for, and tokens in all."""

_PER_NGRAM = 4
"""Snippets per n-gram, the latest: wording varies."""

_PLACES = 16
"""Places of an n-gram among which snippets are chosen that have not been told yet."""


class SnippetRetriever:
    """Finds snippets for one sequence, none of them twice."""

    def __init__(self, memory: ResponseCache, salt: str) -> None:
        self._memory = memory
        self._salt = salt
        self._told: set[int] = set()

    def find(self, ids: Sequence[int], max_tokens: int) -> list[tuple[int, ...]]:
        """Snippets in which other responses said what `ids` says last, `max_tokens` in all.

        What has been overwritten in memory since it was told may be passed over.
        """
        found: list[tuple[int, ...]] = []
        for place in self._places(ids):
            snippet = self._memory.snippet(place, _BEFORE, min(_LENGTH, max_tokens))
            if place in self._told or not 2 <= len(snippet) <= max_tokens:
                continue
            self._told.update(snippet)
            found.append(self._memory.text(snippet))
            max_tokens -= len(snippet)
        return found

    def _places(self, ids: Sequence[int]) -> Iterator[int]:
        """Where what the sequence said last was said, from its end backwards; of each n-gram the longest."""
        for end in range(len(ids), max(0, len(ids) - _LOOK_BACK), -1):
            for order in sorted(ORDERS, reverse=True):
                if order < 2 or order > end:
                    continue
                places = self._memory.places(tuple(ids[end - order : end]), self._salt, _PLACES)
                news = [place for place in places if place not in self._told]
                yield from news[:_PER_NGRAM]
                if places:
                    break
