"""The look-up engine of a replica, for many sequences, and one sequence in it."""

from collections.abc import Sequence

from flyserve.core.messages import Open
from services.lookup.index.budget import IndexBudget, IndexShare
from services.lookup.index.response_cache import ResponseCache, SnippetRetriever
from services.lookup.index.suffix import FOR_TARGET, SaltedCache, Snippets, SuffixProposer


class SuffixLookup:
    """A sequence and, if it may copy them, its dropped drafts and the cached responses of its cache salt."""

    def __init__(self, cache: ResponseCache, salt: str, share: IndexShare, may_copy: bool) -> None:
        """Start with an empty sequence."""
        self._cache = cache
        self._salt = salt
        self._share = share
        others = SaltedCache(cache, salt) if may_copy else Snippets()
        self._proposer = SuffixProposer(others, FOR_TARGET, share, keeps_dropped=may_copy)
        self._retriever = SnippetRetriever(cache, salt)

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        """Set the sequence to `ids`; its first `unchanged` tokens are as before."""
        self._proposer.update(ids, unchanged)

    def index(self) -> bool:
        """Index the next part of a long sequence, a few milliseconds; return False if none was left."""
        return self._proposer.index()

    def propose(self, max_tokens: int) -> tuple[int, ...]:
        """Return a draft of at most `max_tokens` tokens after the sequence; empty if none is likely."""
        return self._proposer.propose(max_tokens)

    def snippets(self, ids: Sequence[int], max_tokens: int) -> list[tuple[int, ...]]:
        """Return snippets of finished responses for the sequence `ids`, which need not be set by `update`.

        They have `max_tokens` in total, and each is returned at most once. A drafter makes proposals from
        them itself.
        """
        return self._retriever.find(ids, max_tokens)

    def finish(self, response: Sequence[int]) -> None:
        """End the sequence; called once, as the last call.

        `response` holds the decided tokens of the response, after the last few tokens of the prompt. Other
        sequences find them as soon as the engine's `link` has linked them.
        """
        self._share.close()
        self._cache.add(response, self._salt)


class SuffixEngine:
    """Prediction from all occurrences of the last n-grams in the sequence and in cached responses.

    Attributes:
        response_cache_capacity: Most tokens of finished responses that the cache holds; 0 without a cache.
    """

    def __init__(self, response_cache_tokens: int, budget: IndexBudget) -> None:
        """Create an empty cache; the indexes of all sequences share the budget."""
        self.response_cache_capacity = response_cache_tokens
        self._budget = budget
        self._cache = ResponseCache(response_cache_tokens)

    @property
    def response_cache_tokens(self) -> int:
        """Tokens of finished responses in the cache at present."""
        return self._cache.num_tokens

    def link(self) -> bool:
        """Link the next part of the finished responses, a few milliseconds; return False if none is left."""
        return self._cache.link()

    def open(self, opening: Open) -> SuffixLookup:
        """Return a new, empty sequence."""
        share = self._budget.share(is_required=opening.without_copies)
        return SuffixLookup(self._cache, opening.cache_salt, share, not opening.without_copies)
