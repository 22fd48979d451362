"""The n-gram index of one growing sequence, and proposals by prompt look-up."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_RECENT = 8
"""Earlier occurrences from which the confidence is estimated."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A continuation found by look-up.

    Attributes:
        tokens: The proposed ids; empty without a match.
        match_length: Length of the matched suffix, in tokens.
        confidence: Estimated probability that the first token is right.
    """

    tokens: tuple[int, ...] = ()
    match_length: int = 0
    confidence: float = 0.0


class NgramIndex:
    """The n-grams of one growing sequence, each with a chain of positions from the latest to the first.

    The position of an n-gram is that of the token after it. Appending and truncating cost O(orders) per
    token.
    """

    def __init__(self, orders: Iterable[int]) -> None:
        """Create an empty index of n-grams whose lengths are `orders`, each at least 1."""
        self._ids: list[int] = []
        # No n-gram has position 0, so 0 ends a chain.
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: dict[int, list[int]] = {order: [] for order in orders}

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: Iterable[int]) -> None:
        """Append tokens."""
        indexed, latest = self._ids, self._latest
        for token in ids:
            position = len(indexed)
            for order, earlier in self._earlier.items():
                if position < order:
                    earlier.append(0)
                    continue
                ngram = tuple(indexed[position - order :])
                earlier.append(latest.get(ngram, 0))
                latest[ngram] = position
            indexed.append(token)

    def truncate(self, length: int) -> None:
        """Remove all tokens from position `length` on."""
        while len(self._ids) > length:
            self._ids.pop()
            for order, earlier in self._earlier.items():
                ngram, position = self.suffix(order), earlier.pop()
                if position:
                    self._latest[ngram] = position
                elif ngram:
                    del self._latest[ngram]

    def tokens(self, start: int, stop: int | None = None) -> list[int]:
        """Return the tokens from position `start` to `stop`; a negative position counts from the end."""
        return self._ids[start:stop]

    def suffix(self, order: int) -> tuple[int, ...]:
        """Return the last `order` tokens; empty if the sequence is shorter."""
        return tuple(self._ids[-order:]) if len(self._ids) >= order else ()

    def latest_position(self, ngram: tuple[int, ...]) -> int:
        """Return the latest position of an n-gram; 0 if it has none."""
        return self._latest.get(ngram, 0)

    def followers(self, ngram: tuple[int, ...], limit: int) -> list[int]:
        """Return the tokens that followed an n-gram, the latest first, at most `limit`."""
        position = self._latest.get(ngram, 0)
        found: list[int] = []
        if not position:
            return found
        earlier = self._earlier[len(ngram)]
        while position and len(found) < limit:
            found.append(self._ids[position])
            position = earlier[position]
        return found


class PromptLookup:
    """Proposals for one sequence: continue the latest earlier occurrence of its longest matching suffix."""

    def __init__(self, min_ngram: int = 2, max_ngram: int = 5) -> None:
        """Match suffixes of `max_ngram` down to `min_ngram` tokens."""
        self._orders = range(max_ngram, min_ngram - 1, -1)
        self._index = NgramIndex(self._orders)

    def update(self, ids: Sequence[int], unchanged: int) -> None:
        """Set the sequence to `ids`; its first `unchanged` tokens are as before."""
        self._index.truncate(unchanged)
        self._index.extend(ids[len(self._index) :])

    def propose(self, max_tokens: int) -> Proposal:
        """Return the continuation of the longest suffix that occurred before, at most `max_tokens` long."""
        if max_tokens < 1:
            return Proposal()
        for order in self._orders:
            ngram = self._index.suffix(order)
            if position := self._index.latest_position(ngram):
                tokens = self._continuation(position, max_tokens)
                return Proposal(tokens, match_length=order, confidence=self._confidence(ngram))
        return Proposal()

    def _continuation(self, start: int, max_tokens: int) -> tuple[int, ...]:
        """Return the tokens from `start` on; beyond the end of the sequence they repeat."""
        tokens = self._index.tokens(start, start + max_tokens)
        return tuple(tokens[offset % len(tokens)] for offset in range(max_tokens))

    def _confidence(self, ngram: tuple[int, ...]) -> float:
        """Return the share of recent occurrences that continue like the latest (with one doubt added)."""
        recent = self._index.followers(ngram, _RECENT)
        return recent.count(recent[0]) / (len(recent) + 1)
