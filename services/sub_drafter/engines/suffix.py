"""The engine `suffix`: statistics of each sequence's suffixes, and a shared memory of finished responses."""

from collections.abc import Sequence

from fly.lookup import Guess
from fly.messages import Open
from fly.passages import PassageFinder
from fly.response_memory import ResponseMemory
from fly.suffix import SaltedMemory, SuffixGuesser


class SuffixLookup:
    """One sequence and the memory of its cache salt."""

    def __init__(self, memory: ResponseMemory, salt: str) -> None:
        self._memory = memory
        self._salt = salt
        self._guesser = SuffixGuesser(SaltedMemory(memory, salt))
        self._finder = PassageFinder(memory, salt)
        self._ids: Sequence[int] = ()

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        self._ids = ids
        self._guesser.update(ids, unchanged)

    def guess(self, max_tokens: int) -> Guess:
        return self._guesser.guess(max_tokens)

    def passages(self, max_tokens: int) -> list[tuple[int, ...]]:
        return self._finder.find(self._ids, max_tokens)

    def finish(self, response: Sequence[int]) -> None:
        self._memory.add(response, self._salt)


class SuffixEngine:
    """Guesses as the sequence, and the responses before it, went on after the same suffix."""

    def __init__(self, memory_tokens: int) -> None:
        self._memory = ResponseMemory(memory_tokens)

    @property
    def memory_tokens(self) -> int:
        return self._memory.num_tokens

    def open(self, opening: Open) -> SuffixLookup:
        return SuffixLookup(self._memory, opening.cache_salt)
