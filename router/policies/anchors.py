"""The traffic of late: which beginnings prompts had, how common each is, and where each is at home."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from fly.blocks import BlockKey
from router.policies.key import RequestKey

K = TypeVar("K", bound=Hashable)

_FEW = 8
"""Requests that say nothing yet: of what is common, and of where prompts part."""

_ROOM = 0.9
"""Part of its share up to which a place takes new anchors; the rest is for those that it has to grow."""


class RecentTraffic:
    """The last requests, by their beginnings and by the homes of their anchors.

    The anchor of a prompt is its shortest beginning that is not too common for one replica to take all of
    it. So prompts meet that share a long prefix and differ later, turns of one conversation stay together,
    and a first block that every prompt has, or a prefix that half of them have, pins nothing.
    """

    def __init__(self, most: int) -> None:
        """Remembers the last `most` requests."""
        self._most = most
        self._requests: deque[tuple[RequestKey, BlockKey]] = deque()
        self._beginnings: Counter[BlockKey] = Counter()
        self._anchors: Counter[BlockKey] = Counter()
        self._homes: dict[BlockKey, str] = {}
        self._at: Counter[str] = Counter()

    def anchor(self, key: RequestKey, share: float) -> BlockKey:
        """The shortest beginning that at most a `share` of requests have, and at which prompts part.

        Where all are commoner it is the longest. Where one conversation is all the traffic, its turns part
        nowhere: it is anchored where it begins.
        """
        most = max(_FEW, share * len(self._requests))
        counts = [self._beginnings[block] for block in key]
        index = next((i for i, count in enumerate(counts) if count <= most), len(key) - 1)
        while index > 0 and counts[index - 1] - counts[index] <= _FEW:
            index -= 1
        return key[index]

    def home(self, anchor: BlockKey, order: Sequence[str], share: float) -> str:
        """Where the anchor is at home, unless that has more than its share and another place has room.

        Args:
            anchor: Of a request.
            order: Where it may go, the first choice first. Its home may be missing: it is for this once.
            share: Of all requests that may be at home in one place.
        """
        limit = max(_FEW, share * (len(self._requests) + 1))
        home, own = self._homes.get(anchor), self._anchors[anchor]
        if home is not None and self._at[home] < limit:
            return home
        with_room = (place for place in order if self._at[place] + own < _ROOM * limit)
        return next(with_room, home or min(order, key=lambda place: self._at[place]))

    def at_home(self, place: str) -> int:
        """Requests of late whose anchors are at home there."""
        return self._at[place]

    def add(self, key: RequestKey, anchor: BlockKey, home: str) -> None:
        """Another request, whose anchor is at home there from now on; the oldest one is forgotten."""
        self._move(anchor, home)
        self._requests.append((key, anchor))
        self._beginnings.update(key)
        self._anchors[anchor] += 1
        self._at[home] += 1
        if len(self._requests) > self._most:
            self._forget(*self._requests.popleft())

    def move_to(self, place: str, prefers: Callable[[BlockKey, str], bool]) -> None:
        """Gives the place every anchor that `prefers` it to its home."""
        for anchor, home in self._homes.items():
            if prefers(anchor, home):
                self._move(anchor, place)

    def leave(self, place: str) -> None:
        """Nothing is at home there any more."""
        for anchor in [anchor for anchor, home in self._homes.items() if home == place]:
            del self._homes[anchor]
        del self._at[place]

    def _move(self, anchor: BlockKey, home: str) -> None:
        if (before := self._homes.get(anchor)) is not None:
            self._at[before] -= self._anchors[anchor]
        self._at[home] += self._anchors[anchor]
        self._homes[anchor] = home

    def _forget(self, key: RequestKey, anchor: BlockKey) -> None:
        for block in key:
            _decrease(self._beginnings, block)
        if (home := self._homes.get(anchor)) is not None:
            _decrease(self._at, home)
        _decrease(self._anchors, anchor)
        if anchor not in self._anchors:
            self._homes.pop(anchor, None)


def _decrease(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
