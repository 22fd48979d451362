"""The engine `suffix`: statistics of each sequence's suffixes, and a shared memory of finished responses."""

from collections.abc import Sequence

from fly.lookup.ngram import Proposal
from fly.lookup.response_cache import ResponseCache
from fly.lookup.snippets import SnippetRetriever
from fly.lookup.suffix import SaltedMemory, SuffixProposer
from fly.messages import Open


class SuffixLookup:
    """One sequence and the memory of its cache salt."""

    def __init__(self, memory: ResponseCache, salt: str) -> None:
        self._memory = memory
        self._salt = salt
        self._proposer = SuffixProposer(SaltedMemory(memory, salt))
        self._finder = SnippetRetriever(memory, salt)
        self._ids: Sequence[int] = ()

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        self._ids = ids
        self._proposer.update(ids, unchanged)

    def propose(self, max_tokens: int) -> Proposal:
        return self._proposer.propose(max_tokens)

    def snippets(self, max_tokens: int) -> list[tuple[int, ...]]:
        return self._finder.find(self._ids, max_tokens)

    def finish(self, response: Sequence[int]) -> None:
        self._memory.add(response, self._salt)


class SuffixEngine:
    """Proposals as the sequence, and the responses before it, went on after the same suffix."""

    def __init__(self, response_cache_tokens: int) -> None:
        self._memory = ResponseCache(response_cache_tokens)

    @property
    def response_cache_tokens(self) -> int:
        return self._memory.num_tokens

    def open(self, opening: Open) -> SuffixLookup:
        return SuffixLookup(self._memory, opening.cache_salt)
