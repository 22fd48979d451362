"""The engine `ngram`: prompt look-up within each sequence; sequences share nothing."""

from collections.abc import Sequence

from fly.lookup.budget import IndexBudget, IndexShare
from fly.lookup.ngram import PromptLookup
from fly.messages import Open


class NgramLookup(PromptLookup):
    """Prompt look-up in one sequence."""

    def __init__(self, min_ngram: int, max_ngram: int, share: IndexShare, for_target: bool) -> None:
        super().__init__(min_ngram, max_ngram, share, for_target)
        self._share = share

    def snippets(self, max_tokens: int) -> list[tuple[int, ...]]:
        return []

    def finish(self, response: Sequence[int]) -> None:
        """Free the index; this engine has no cache."""
        self._share.close()


class NgramEngine:
    """Continuation of the latest earlier occurrence of the longest matching suffix."""

    response_cache_tokens = 0
    response_cache_capacity = 0

    def __init__(self, min_ngram: int, max_ngram: int, budget: IndexBudget, for_target: bool = False) -> None:
        self._min_ngram = min_ngram
        self._max_ngram = max_ngram
        self._budget = budget
        self._for_target = for_target

    def open(self, opening: Open) -> NgramLookup:
        return NgramLookup(self._min_ngram, self._max_ngram, self._budget.share(), self._for_target)
