"""The n-gram index of one growing sequence."""

from collections.abc import Iterable, Sequence

from services.lookup.index.budget import IndexBudget, IndexShare
from services.lookup.index.sorted_ngrams import SortedNgrams

_MAX_ADDED = 1024
"""Most tokens that are added to the dictionaries at once; of more, only the last ones."""
_MIN_RECENT, _MAX_RECENT = 128, 1152
"""Tokens in the dictionaries: at least so many that a rejected draft lies within them."""
_NGRAMS_PER_CALL = 1 << 15
"""N-grams of older text that one call indexes: a few milliseconds."""
_MAX_NGRAMS = 5 << 17
"""N-grams in the sorted arrays of one index: with five orders 131,072 tokens."""


class NgramIndex:
    """The n-grams of one growing sequence, each with its positions from the latest to the first.

    The position of an n-gram is that of the token after it. The latest positions, at most about 1,200, are in
    dictionaries, to which a token is added or from which it is removed in O(orders). Earlier ones are in
    sorted arrays, which take a tenth of the memory.

    Of a long text, one call of `extend` or `index` indexes `_NGRAMS_PER_CALL` n-grams and the following calls
    the rest. The end of the text is indexed first: what comes next repeats recent text most often, and for
    the first proposals the others are missing. Positions before the latest `_MAX_NGRAMS`, and those for which
    the share of the budget is exhausted, are not indexed.
    """

    def __init__(self, orders: Iterable[int], share: IndexShare | None = None) -> None:
        """Create an empty index of n-grams whose lengths are `orders`, each at least 1."""
        self._ids: list[int] = []
        # The dictionaries begin at position `_start`. No n-gram has position 0, so 0 ends a chain.
        self._start = 0
        self._latest: dict[tuple[int, ...], int] = {}
        self._earlier: dict[int, list[int]] = {order: [] for order in orders}
        self._share = share or IndexBudget().share()
        self._older = self._no_older()
        self._oldest = 0

    def __len__(self) -> int:
        return len(self._ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Append tokens."""
        if len(ids) > _MAX_ADDED:
            self._ids.extend(ids)
            self._restart()
        else:
            self._add_recent(ids)
            if len(self._ids) - self._start > _MAX_RECENT:
                self._move_older()
        self.index()

    def index(self) -> bool:
        """Index the next part of a long text, a few milliseconds; return False if none was left."""
        if self._older.start <= self._oldest:
            return False
        self._index_older()
        return True

    def truncate(self, length: int) -> None:
        """Remove all tokens from position `length` on."""
        if length < self._start:
            del self._ids[length:]
            self._restart()
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

    def followers(self, ngram: tuple[int, ...], limit: int) -> list[int]:
        """Return the tokens that followed an n-gram, the latest first, at most `limit`."""
        found: list[int] = []
        if position := self._latest.get(ngram, 0):
            ids, earlier, start = self._ids, self._earlier[len(ngram)], self._start
            while position and len(found) < limit:
                found.append(ids[position])
                position = earlier[position - start]
        if self._start and len(found) < limit:
            older = self._older.positions(ngram, limit - len(found))
            found += [self._ids[position] for position in older]
        return found

    def _add_recent(self, ids: Sequence[int]) -> None:
        """Append tokens, and their n-grams to the dictionaries."""
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

    def _restart(self) -> None:
        """Index the last tokens in the dictionaries and no others yet."""
        self._share.give_back(len(self._older))
        self._set_start(max(0, len(self._ids) - _MIN_RECENT))
        self._older = self._no_older()
        self._oldest = max(0, self._start - _MAX_NGRAMS // len(self._earlier))

    def _move_older(self) -> None:
        """Move all but the last tokens from the dictionaries to the sorted arrays."""
        start, older = self._start, self._older
        self._set_start(len(self._ids) - _MIN_RECENT)
        num_added = self._start - start
        is_full = len(older) + num_added > _MAX_NGRAMS // len(self._earlier)
        if is_full or not self._share.take(num_added):
            num_added = min(num_added, len(older))
            older.drop(num_added)
            self._oldest = older.start
        if num_added:
            older.add(self._ids, self._start - num_added, self._start)

    def _index_older(self) -> None:
        """Index the next part of a long text, from its end towards its beginning."""
        stop = self._older.start
        start = max(self._oldest, stop - _NGRAMS_PER_CALL // len(self._earlier))
        if self._share.take(stop - start):
            self._older.add(self._ids, start, stop)
        else:
            self._oldest = stop

    def _set_start(self, start: int) -> None:
        """Index the tokens from position `start` on in the dictionaries, and only them."""
        recent = self._ids[start:]
        del self._ids[start:]
        self._start = start
        self._latest = {}
        self._earlier = {order: [] for order in self._earlier}
        self._add_recent(recent)

    def _no_older(self) -> SortedNgrams:
        return SortedNgrams(tuple(self._earlier), self._start)
