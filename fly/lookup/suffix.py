"""Suffix proposing: how the sequence, and the responses before it, went on wherever they ended like this."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fly.lookup.ngram import Proposal
from fly.lookup.response_cache import END, ORDERS, ResponseCache
from fly.sequence import common_length

_OWN_ORDERS = (1, 2, 3, 4)
_LONGEST = max(ORDERS)
_ORDERS = sorted({*ORDERS, *_OWN_ORDERS}, reverse=True)


class SequenceIndex:
    """The n-grams of one growing sequence, each with a chain of places from the latest to the first.

    A place is the position of the token that follows an n-gram. Appending and truncating cost O(orders) per
    token.
    """

    def __init__(self, orders: Sequence[int] = _OWN_ORDERS) -> None:
        self._ids: list[int] = []
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: dict[int, list[int]] = {order: [] for order in orders}

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: Iterable[int]) -> None:
        known, latest = self._ids, self._latest
        for token in ids:
            place = len(known)
            for order, earlier in self._earlier.items():
                if place < order:
                    earlier.append(0)
                    continue
                ngram = tuple(known[place - order :])
                earlier.append(latest.get(ngram, 0))
                latest[ngram] = place
            known.append(token)

    def truncate(self, length: int) -> None:
        """Forgets all tokens from position `length` on."""
        while len(self._ids) > length:
            self._ids.pop()
            for order, earlier in self._earlier.items():
                ngram, place = self._before(order), earlier.pop()
                if place:
                    self._latest[ngram] = place
                elif ngram:
                    del self._latest[ngram]

    def from_position(self, position: int) -> list[int]:
        """The tokens from a position on; a negative one counts from the end."""
        return self._ids[position:]

    def followers(self, ngram: tuple[int, ...], limit: int) -> list[int]:
        """The tokens that followed an n-gram of one of the orders, the latest first, at most `limit`."""
        place = self._latest.get(ngram, 0)
        found: list[int] = []
        if not place:
            return found
        earlier = self._earlier[len(ngram)]
        while place and len(found) < limit:
            found.append(self._ids[place])
            place = earlier[place]
        return found

    def _before(self, order: int) -> tuple[int, ...]:
        """The n-gram that precedes the next token; empty where the sequence is too short for it."""
        return tuple(self._ids[-order:]) if len(self._ids) >= order else ()


class NgramSource(Protocol):
    """What other responses say."""

    def followers(self, ngram: tuple[int, ...], limit: int) -> list[int]:
        """The tokens that followed an n-gram, the latest first, at most `limit`."""


class SaltedMemory:
    """The responses of one salt."""

    def __init__(self, memory: ResponseCache, salt: str) -> None:
        self._memory = memory
        self._salt = salt

    def followers(self, ngram: tuple[int, ...], limit: int) -> list[int]:
        return self._memory.followers(ngram, self._salt, limit)


class Snippets:
    """Snippets of other responses, told one by one."""

    def __init__(self) -> None:
        self._index = SequenceIndex(ORDERS)

    def add(self, snippet: Iterable[int]) -> None:
        self._index.extend((END, *snippet))

    def followers(self, ngram: tuple[int, ...], limit: int) -> list[int]:
        return self._index.followers(ngram, limit)


@dataclass(frozen=True, slots=True)
class SuffixRule:
    """How evidence is weighed, and when a proposal ends.

    Attributes:
        min_step: A token less likely than this, given those before it, ends the proposal.
        min_joint: So does a proposal that is less likely than this as a whole.
        max_places: Occurrences that are counted per n-gram, the latest ones.
        own_weight: Of an occurrence in the sequence itself, against one in another response.
        negligible: Probability that is left to shorter n-grams at which they are no longer asked.
    """

    min_step: float = 0.1
    min_joint: float = 0.1
    max_places: int = 16
    own_weight: float = 2.0
    negligible: float = 0.1


class SuffixProposer:
    """Proposals for one sequence, token by token, each the likeliest after those before it.

    Three sources are asked for what followed the last tokens: the sequence, the drafts that were dropped from
    it (what was wrong once is often right a few tokens later), and other responses. Longer n-grams count
    first; what they leave open goes to shorter ones (interpolation after Witten and Bell, 1991).
    """

    def __init__(self, others: NgramSource, rule: SuffixRule | None = None) -> None:
        self._sequence = SequenceIndex()
        self._dropped = SequenceIndex()
        self._others = others
        self._rule = rule or SuffixRule()

    def follow(self, ids: Sequence[int], decided: int) -> None:
        """As `update`, where all that may have changed since lies behind the first `decided` tokens."""
        start = min(decided, len(self._sequence))
        self.update(ids, start + common_length(self._sequence.from_position(start), ids[start:]))

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        """The sequence is `ids` from now on; its first `unchanged` tokens are as they were."""
        if dropped := self._sequence.from_position(unchanged):
            before = self._sequence.from_position(max(0, unchanged - _LONGEST))
            self._dropped.extend([END, *before[: len(before) - len(dropped)], *dropped])
        self._sequence.truncate(unchanged)
        self._sequence.extend(ids[unchanged:])

    def propose(self, max_tokens: int) -> Proposal:
        """The likeliest continuation, for as long as it is likely enough."""
        rule, tail = self._rule, self._sequence.from_position(-_LONGEST)
        tokens: list[int] = []
        match_length, first, joint = 0, 0.0, 1.0
        while len(tokens) < max_tokens:
            token, confidence, order = self._next(tuple(tail[-_LONGEST:]))
            joint *= confidence
            if confidence < rule.min_step or joint < rule.min_joint:
                break
            if not tokens:
                match_length, first = order, confidence
            tokens.append(token)
            tail.append(token)
        return Proposal(tuple(tokens), match_length, first)

    def _next(self, tail: tuple[int, ...]) -> tuple[int, float, int]:
        """The likeliest next token, its probability, and the longest n-gram that said something."""
        chances: dict[int, float] = {}
        left, longest = 1.0, 0
        for order, weight, followers in self._evidence(tail):
            longest = longest or order
            kinds = len(set(followers))
            total = weight * len(followers) + kinds
            share = left * weight / total
            for token in followers:
                chances[token] = chances.get(token, 0.0) + share
            left *= kinds / total
            if left < self._rule.negligible:
                break
        chances.pop(END, None)
        if not chances:
            return END, 0.0, 0
        token = max(chances, key=chances.__getitem__)
        return token, chances[token], longest

    def _evidence(self, tail: tuple[int, ...]) -> Iterator[tuple[int, float, list[int]]]:
        """Order, weight and tokens that followed there, the longest n-grams first."""
        limit, own = self._rule.max_places, self._rule.own_weight
        for order in _ORDERS:
            ngram = tail[-order:]
            if len(ngram) < order:
                continue
            for index in (self._dropped, self._sequence):
                if followers := index.followers(ngram, limit):
                    yield order, own, followers
            if followers := self._others.followers(ngram, limit):
                yield order, 1.0, followers
