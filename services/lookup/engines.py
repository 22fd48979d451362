"""The look-up engines, behind one interface: an engine for many sequences, and one sequence in it."""

from collections.abc import Sequence
from typing import Protocol

from flyserve.core.messages import Open
from services.lookup.config import AnyLookupConfig, SuffixConfig
from services.lookup.index.budget import IndexBudget, IndexShare
from services.lookup.index.ngram import PromptLookup
from services.lookup.index.response_cache import ResponseCache, SnippetRetriever
from services.lookup.index.suffix import FOR_TARGET, SaltedCache, Snippets, SuffixProposer


class SequenceLookup(Protocol):
    """A sequence at an engine."""

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        """Set the sequence to `ids`; its first `unchanged` tokens are as before."""

    def propose(self, max_tokens: int) -> tuple[int, ...]:
        """Return a draft of at most `max_tokens` tokens after the sequence; empty if none is likely."""

    def snippets(self, ids: Sequence[int], max_tokens: int) -> list[tuple[int, ...]]:
        """Return snippets of finished responses for the sequence `ids`, which need not be set by `update`.

        They have `max_tokens` in total, and each is returned at most once. A drafter makes proposals from
        them itself.
        """

    def finish(self, response: Sequence[int]) -> None:
        """End the sequence; called once, as the last call.

        `response` holds the decided tokens of the response, after the last few tokens of the prompt.
        """


class ProposalEngine(Protocol):
    """A look-up engine for many sequences."""

    def open(self, opening: Open) -> SequenceLookup:
        """Return a new, empty sequence."""

    @property
    def response_cache_tokens(self) -> int:
        """Tokens of finished responses in the cache at present."""

    @property
    def response_cache_capacity(self) -> int:
        """Most tokens of finished responses that the cache holds; 0 without a cache."""


class NgramLookup(PromptLookup):
    """Prompt look-up within one sequence; sequences share nothing."""

    def __init__(self, min_ngram: int, max_ngram: int, share: IndexShare) -> None:
        super().__init__(min_ngram, max_ngram, share)
        self._share = share

    def snippets(self, ids: Sequence[int], max_tokens: int) -> list[tuple[int, ...]]:
        return []

    def finish(self, response: Sequence[int]) -> None:
        """Free the index; this engine has no cache."""
        self._share.close()


class NgramEngine:
    """Continuation of the latest earlier occurrence of the longest matching suffix."""

    response_cache_tokens = 0
    response_cache_capacity = 0

    def __init__(self, min_ngram: int, max_ngram: int, budget: IndexBudget) -> None:
        self._min_ngram = min_ngram
        self._max_ngram = max_ngram
        self._budget = budget

    def open(self, opening: Open) -> NgramLookup:
        return NgramLookup(self._min_ngram, self._max_ngram, self._budget.share())


class SuffixLookup:
    """A sequence and, if it may copy them, the cached responses of its cache salt."""

    def __init__(self, cache: ResponseCache, salt: str, share: IndexShare, may_copy: bool) -> None:
        self._cache = cache
        self._salt = salt
        self._share = share
        others = SaltedCache(cache, salt) if may_copy else Snippets()
        proposer = SuffixProposer(others, FOR_TARGET, share)
        self.update, self.propose = proposer.update, proposer.propose
        self.snippets = SnippetRetriever(cache, salt).find

    def finish(self, response: Sequence[int]) -> None:
        self._share.close()
        self._cache.add(response, self._salt)


class SuffixEngine:
    """Prediction from all occurrences of the last n-grams in the sequence and in cached responses."""

    def __init__(self, response_cache_tokens: int, budget: IndexBudget) -> None:
        self.response_cache_capacity = response_cache_tokens
        self._budget = budget
        self._cache = ResponseCache(response_cache_tokens)

    @property
    def response_cache_tokens(self) -> int:
        return self._cache.num_tokens

    def open(self, opening: Open) -> SuffixLookup:
        return SuffixLookup(self._cache, opening.cache_salt, self._budget.share(), not opening.without_copies)


def build_engine(config: AnyLookupConfig, budget: IndexBudget) -> ProposalEngine:
    """Return a new engine of the kind that the configuration names; its indexes share the budget."""
    if isinstance(config, SuffixConfig):
        return SuffixEngine(config.response_cache_tokens, budget)
    return NgramEngine(config.min_ngram, config.max_ngram, budget)
