"""The engine `suffix`: suffix statistics of each sequence, and a shared cache of finished responses."""

from collections.abc import Sequence

from fly.lookup.budget import IndexBudget, IndexShare
from fly.lookup.ngram import Proposal
from fly.lookup.response_cache import ResponseCache, SnippetRetriever
from fly.lookup.suffix import SaltedCache, SuffixProposer, SuffixRule
from fly.messages import Open


class SuffixLookup:
    """A sequence and the cached responses of its cache salt."""

    def __init__(self, cache: ResponseCache, salt: str, share: IndexShare, rule: SuffixRule) -> None:
        self._cache = cache
        self._salt = salt
        self._share = share
        self._proposer = SuffixProposer(SaltedCache(cache, salt), rule, share)
        self._retriever = SnippetRetriever(cache, salt)
        self._ids: Sequence[int] = ()

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        self._ids = ids
        self._proposer.update(ids, unchanged)

    def propose(self, max_tokens: int) -> Proposal:
        return self._proposer.propose(max_tokens)

    def snippets(self, max_tokens: int) -> list[tuple[int, ...]]:
        return self._retriever.find(self._ids, max_tokens)

    def finish(self, response: Sequence[int]) -> None:
        self._share.close()
        self._cache.add(response, self._salt)


class SuffixEngine:
    """Prediction from all occurrences of the last n-grams in the sequence and in cached responses."""

    def __init__(
        self, response_cache_tokens: int, budget: IndexBudget, rule: SuffixRule | None = None
    ) -> None:
        self.response_cache_capacity = response_cache_tokens
        self._budget = budget
        self._rule = rule or SuffixRule()
        self._cache = ResponseCache(response_cache_tokens)

    @property
    def response_cache_tokens(self) -> int:
        return self._cache.num_tokens

    def open(self, opening: Open) -> SuffixLookup:
        return SuffixLookup(self._cache, opening.cache_salt, self._budget.share(), self._rule)
