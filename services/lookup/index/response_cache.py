"""A bounded cache of finished responses, searched by their n-grams; the oldest response is evicted first."""

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

END = (1 << 32) - 1
"""Separator after every response; token ids lie below it."""

ORDERS = (1, 2, 4, 8, 16)
"""Lengths of the indexed n-grams."""

_MAX_TRIES = 4
"""Chain links that a look-up follows per position that it wants; n-grams with the same hash share a chain."""

_FEW_RESPONSES, _FEW_TOKENS = 1024, 32
"""Responses that any cache may hold, and tokens of its limit for each response of a larger one: a response
and its salt take some hundred bytes beside the tokens."""

MAX_LINKED = 1024
"""Most tokens that one call of `link` adds to the chains: about 2 ms."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A response in the ring: its first cell, its tokens, the cells that it occupies, its salt."""

    start: int
    num_tokens: int
    num_cells: int
    salt: str


class ResponseCache:
    """Responses in a ring of token cells, with a chain of positions per n-gram from the latest to the oldest.

    The position of an n-gram is the cell of the token after it within its response. Chains are never
    cleaned: a walk ends where a link leads to a younger cell, and every position is compared before it
    counts. A token that has been overwritten, or belongs to another salt, is therefore never found. Memory
    per token: 8 bytes, and about 8 bytes per order.

    `add` only writes a response into the ring. `link` adds its positions to the chains, which takes much
    longer, in parts and in the order of the ring, so the chains are the same as in one piece. A response that
    is evicted earlier is not linked any further.

    Attributes:
        num_tokens: Tokens of all cached responses; at most `max_tokens`.
    """

    def __init__(self, max_tokens: int, orders: Sequence[int] = ORDERS) -> None:
        """Create an empty cache; `orders` are the lengths of the indexed n-grams."""
        self.num_tokens = 0
        self._shortest, self._longest = min(orders), max(orders)
        self._num_cells = max_tokens + 1
        self._most_responses = max(_FEW_RESPONSES, max_tokens // _FEW_TOKENS)
        self._tokens = np.zeros(self._num_cells, np.uint32).data
        self._owners = np.zeros(self._num_cells, np.uint32).data
        self._mask = (1 << max(4, (max_tokens // 2).bit_length())) - 1
        # Per order the latest position of every hash, and the one before each; stored plus 1, 0 is none.
        self._indices = {
            order: (np.zeros(self._mask + 1, np.uint32).data, np.zeros(self._num_cells, np.uint32).data)
            for order in orders
        }
        self._head = 0
        self._span = 0
        self._stored: deque[_Stored] = deque()
        # The last stored responses, which are not linked yet, and how many tokens of the first one are.
        self._unlinked: deque[_Stored] = deque()
        self._num_linked = 0
        self._salts: dict[str, int] = {}
        self._num_of_salt: Counter[str] = Counter()
        self._next_owner = 1

    def __len__(self) -> int:
        """Number of cached responses."""
        return len(self._stored)

    @property
    def num_bytes(self) -> int:
        """Bytes of the ring and its index, once every cell has been written."""
        views = (self._tokens, self._owners, *itertools.chain.from_iterable(self._indices.values()))
        return sum(view.nbytes for view in views)

    def add(self, ids: Sequence[int], salt: str = "") -> None:
        """Add a response; of a response that is too long, its end. It is found as far as it is linked."""
        ids = ids[max(0, len(ids) - self._num_cells + 1) :]
        if len(ids) <= self._shortest:
            return
        start, num_cells = self._make_room(len(ids) + 1)
        response = _Stored(start=start, num_tokens=len(ids), num_cells=num_cells, salt=salt)
        self._stored.append(response)
        self.num_tokens += len(ids)
        self._num_of_salt[salt] += 1
        owner = self._salts.get(salt)
        if owner is None:
            owner = self._salts[salt] = self._next_owner
            self._next_owner += 1
        end = start + len(ids)
        self._tokens[start : end + 1] = np.array([*ids, END], np.uint32).data
        self._owners[start : end + 1] = np.full(len(ids) + 1, owner, np.uint32).data
        self._unlinked.append(response)

    def link(self, max_tokens: int = MAX_LINKED) -> bool:
        """Link the next added tokens, at most `max_tokens`; return False if none are left."""
        while self._unlinked and max_tokens > 0:
            response, first = self._unlinked[0], self._num_linked
            stop = min(response.num_tokens, first + max_tokens)
            self._link(response, first, stop)
            max_tokens -= stop - first
            self._num_linked = stop
            if stop == response.num_tokens:
                self._unlinked.popleft()
                self._num_linked = 0
        return bool(self._unlinked)

    def followers(self, ngram: tuple[int, ...], salt: str, limit: int) -> list[int]:
        """Return the tokens that followed an n-gram of one of the orders, the latest first, at most `limit`.

        Only responses of this salt are searched. No token follows the last token of a response.
        """
        return [self._tokens[position] for position in self.positions(ngram, salt, limit)]

    def snippet(self, position: int, num_before: int, num_tokens: int) -> range:
        """Return at most `num_tokens` positions of a response, from at most `num_before` before this one."""
        first = position
        while first > 0 and position - first < num_before and self._tokens[first - 1] != END:
            first -= 1
        last = position
        while last - first < num_tokens and self._tokens[last] != END:
            last += 1
        return range(first, last)

    def text(self, positions: range) -> tuple[int, ...]:
        """Return the tokens at the positions of a snippet."""
        return tuple(self._tokens[positions.start : positions.stop])

    def positions(self, ngram: tuple[int, ...], salt: str, limit: int) -> list[int]:
        """Return the positions of the tokens that followed an n-gram; valid until the next `add`."""
        owner, index = self._salts.get(salt), self._indices.get(len(ngram))
        if owner is None or index is None:
            return []
        latest, earlier = index
        link = latest[hash((owner, *ngram)) & self._mask]
        return self._walk(link, earlier, ngram, owner, limit) if link else []

    def _walk(
        self, link: int, earlier: memoryview, ngram: tuple[int, ...], owner: int, limit: int
    ) -> list[int]:
        found: list[int] = []
        wanted, age, order = np.array(ngram, np.uint32).data, 0, len(ngram)
        for _ in range(limit * _MAX_TRIES):
            if not link or len(found) == limit:
                break
            cell = link - 1
            last_age, age = age, (self._head - cell) % self._num_cells or self._num_cells
            if not last_age < age <= self._span:
                break
            token = self._tokens[cell]
            if token != END and self._owners[cell] == owner and self._tokens[cell - order : cell] == wanted:
                found.append(cell)
            link = earlier[cell]
        return found

    def _link(self, response: _Stored, first: int, stop: int) -> None:
        """Add to the chains the positions of a response from its token `first` to `stop`."""
        begin = max(0, first - self._longest)
        cell = response.start + begin
        owner, ids = self._owners[cell], self._tokens[cell : response.start + stop].tolist()
        for order, (latest, earlier) in self._indices.items():
            for index in range(max(order, first) - begin, len(ids)):
                bucket = hash((owner, *ids[index - order : index])) & self._mask
                earlier[cell + index] = latest[bucket]
                latest[bucket] = cell + index + 1

    def _make_room(self, num_cells: int) -> tuple[int, int]:
        """Free a run of cells that does not wrap around; return its start and length.

        The length includes the cells skipped at the end of the ring.
        """
        skipped = self._num_cells - self._head if self._head + num_cells > self._num_cells else 0
        while self._stored and (
            self._span + skipped + num_cells > self._num_cells or len(self._stored) >= self._most_responses
        ):
            self._evict()
        if not self._stored:
            self._head = self._span = skipped = 0
        if skipped:
            # What an evicted response has left there is not found.
            self._tokens[self._head :] = np.full(skipped, END, np.uint32).data
        start = (self._head + skipped) % self._num_cells
        self._head = (start + num_cells) % self._num_cells
        self._span += skipped + num_cells
        return start, skipped + num_cells

    def _evict(self) -> None:
        oldest = self._stored.popleft()
        if self._unlinked and self._unlinked[0] is oldest:
            self._unlinked.popleft()
            self._num_linked = 0
        self._span -= oldest.num_cells
        self.num_tokens -= oldest.num_tokens
        self._num_of_salt[oldest.salt] -= 1
        if not self._num_of_salt[oldest.salt]:
            del self._num_of_salt[oldest.salt], self._salts[oldest.salt]


_LOOK_BACK = 20
"""Number of last tokens of a sequence that are looked up: a draft and its context."""

_BEFORE, _LENGTH = 16, 44
"""Tokens of a snippet before the position that was found, and tokens in total."""

_AHEAD = 64
"""Tokens of a repeat that should have been sent before they are needed."""

_PER_NGRAM = 4
"""Snippets per n-gram, the latest ones: wording varies."""

_POSITIONS = 16
"""Positions of an n-gram among which snippets that have not been sent are chosen."""


class SnippetRetriever:
    """The search for snippets for one sequence; each snippet is found at most once."""

    def __init__(self, cache: ResponseCache, salt: str) -> None:
        self._cache = cache
        self._salt = salt
        self._sent: set[int] = set()

    def find(self, ids: Sequence[int], max_tokens: int) -> list[tuple[int, ...]]:
        """Return snippets in which the last n-grams of `ids` occur, `max_tokens` in total.

        If the last 16 tokens occur, the first snippet is all that followed there, as far as there is room. A
        response that has overwritten a sent snippet in the cache may be skipped.
        """
        found: list[tuple[int, ...]] = []
        if len(repeat := self._repeat(ids, max_tokens)) >= 2:
            self._sent.update(repeat)
            found.append(self._cache.text(repeat))
            max_tokens -= len(repeat)
        for position in self._positions(ids):
            snippet = self._cache.snippet(position, _BEFORE, min(_LENGTH, max_tokens))
            if position in self._sent or not 2 <= len(snippet) <= max_tokens:
                continue
            self._sent.update(snippet)
            found.append(self._cache.text(snippet))
            max_tokens -= len(snippet)
        return found

    def _repeat(self, ids: Sequence[int], max_tokens: int) -> range:
        """Return what follows the last n-gram of the greatest order and was not sent; empty if nothing."""
        order = max(ORDERS)
        ngram = tuple(ids[-order:])
        if len(ngram) < order or max_tokens <= order:
            return range(0)
        for position in self._cache.positions(ngram, self._salt, 1):
            ahead = self._cache.snippet(position, 0, _AHEAD)
            if (unsent := next((cell for cell in ahead if cell not in self._sent), None)) is not None:
                return self._cache.snippet(unsent, order, max_tokens)
        return range(0)

    def _positions(self, ids: Sequence[int]) -> Iterator[int]:
        """Yield cache positions, from the end of `ids` backwards; at each end by its longest known n-gram."""
        for end in range(len(ids), max(0, len(ids) - _LOOK_BACK), -1):
            for order in sorted(ORDERS, reverse=True):
                if order < 2 or order > end:
                    continue
                positions = self._cache.positions(tuple(ids[end - order : end]), self._salt, _POSITIONS)
                unsent = [position for position in positions if position not in self._sent]
                yield from unsent[:_PER_NGRAM]
                if positions:
                    break
