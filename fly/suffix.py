"""Suffix guessing: how the sequence, and the responses before it, went on wherever they ended like this."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fly.lookup import Guess
from fly.response_memory import END, ResponseMemory


class SequenceIndex:
    """The n-grams of one growing sequence, each with a chain of places from the latest to the first.

    A place is the position of the token that follows an n-gram. Appending and truncating cost O(orders) per
    token.
    """

    def __init__(self, orders: Sequence[int] = (1, 2, 4, 8)) -> None:
        self._orders = tuple(sorted(orders, reverse=True))
        self._ids: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: list[list[int]] = [[] for _ in self._orders]

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: Iterable[int]) -> None:
        for token in ids:
            for order, earlier in zip(self._orders, self._earlier, strict=True):
                ngram = self._before(order)
                earlier.append(self._latest.get(ngram, 0))
                if ngram:
                    self._latest[ngram] = len(self._ids)
            self._ids.append(token)

    def truncate(self, length: int) -> None:
        """Forgets all tokens from position `length` on."""
        while len(self._ids) > length:
            self._ids.pop()
            for order, earlier in zip(self._orders, self._earlier, strict=True):
                ngram, place = self._before(order), earlier.pop()
                if place:
                    self._latest[ngram] = place
                elif ngram:
                    del self._latest[ngram]

    def tail(self, length: int) -> list[int]:
        """The last tokens, at most `length`."""
        return self._ids[-length:]

    def places(self, tail: Sequence[int], limit: int) -> tuple[int, list[int]]:
        """As `ResponseMemory.places`, in this sequence."""
        for order, earlier in zip(self._orders, self._earlier, strict=True):
            place = self._latest.get(tuple(tail[-order:]), 0) if len(tail) >= order else 0
            found: list[int] = []
            while place and len(found) < limit:
                found.append(place)
                place = earlier[place]
            if found:
                return order, found
        return 0, []

    def token(self, place: int) -> int:
        """The token at a place; `END` behind the last."""
        return self._ids[place] if place < len(self._ids) else END

    def _before(self, order: int) -> tuple[int, ...]:
        """The n-gram that precedes the next token; empty where the sequence is too short for it."""
        return tuple(self._ids[-order:]) if len(self._ids) >= order else ()


@dataclass(frozen=True, slots=True)
class SuffixRule:
    """When a guess is worth being made.

    Attributes:
        min_step: A token less likely than this, given those before it, ends the guess.
        min_joint: So does a guess that is less likely than this as a whole.
        sure: Places that agree so well on the next token are followed without looking for others.
        max_places: Earlier occurrences that are compared, the latest ones.
        doubt: Added to the number of occurrences: a single one is not certain.
    """

    min_step: float = 0.3
    min_joint: float = 0.05
    sure: float = 0.85
    max_places: int = 16
    doubt: float = 0.5


@dataclass(frozen=True, slots=True)
class _Vote:
    """What a set of places says of the next token."""

    token: int = END
    confidence: float = 0.0
    match_length: int = 0
    source: "SequenceIndex | ResponseMemory | None" = None
    places: tuple[int, ...] = ()


class SuffixGuesser:
    """Guesses for one sequence, from itself and from the memory of its salt, token by token.

    Each token is the most frequent one at the places of the longest match; they are followed for as long as
    they agree, then the sequence and the memory are looked up again with what has been guessed.
    """

    def __init__(self, memory: ResponseMemory, salt: str = "", rule: SuffixRule | None = None) -> None:
        self.index = SequenceIndex()
        self._memory = memory
        self._salt = salt
        self._rule = rule or SuffixRule()

    def guess(self, max_tokens: int) -> Guess:
        """The most likely continuation, for as long as it is likely enough."""
        rule, tail = self._rule, self.index.tail(16)
        tokens: list[int] = []
        first, joint, vote = _Vote(), 1.0, _Vote()
        while len(tokens) < max_tokens:
            vote = self._next(vote, tail)
            joint *= vote.confidence
            if vote.confidence < rule.min_step or joint < rule.min_joint:
                break
            first = first if tokens else vote
            tokens.append(vote.token)
            tail.append(vote.token)
        return Guess(tuple(tokens), first.match_length, first.confidence)

    def _next(self, vote: _Vote, tail: list[int]) -> _Vote:
        """What follows the token that was voted for."""
        followed = _Vote()
        if vote.source is not None:
            source = vote.source
            places = [place + 1 for place in vote.places if source.token(place) == vote.token]
            followed = self._count(source, places, vote.match_length + 1)
            if followed.confidence >= self._rule.sure:
                return followed
        length, places = self.index.places(tail, self._rule.max_places)
        own = self._count(self.index, places, length)
        length, places = self._memory.places(tail, self._salt, self._rule.max_places)
        shared = self._count(self._memory, places, length)
        return max((followed, own, shared), key=lambda vote: vote.confidence)

    def _count(self, source: "SequenceIndex | ResponseMemory", places: list[int], length: int) -> _Vote:
        counts: dict[int, int] = {}
        for place in places:
            token = source.token(place)
            if token != END:
                counts[token] = counts.get(token, 0) + 1
        if not counts:
            return _Vote()
        token = max(counts, key=counts.__getitem__)
        confidence = counts[token] / (sum(counts.values()) + self._rule.doubt)
        return _Vote(token, confidence, length, source, tuple(places))
