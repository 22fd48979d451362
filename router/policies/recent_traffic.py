"""Recent traffic of a pool: prompt prefixes, how common each is, and the owner of each affinity key."""

from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from flyserve.core.blocks import BlockKey
from router.policies.request_key import RequestKey

K = TypeVar("K", bound=Hashable)

_FEW = 8
"""Number of requests below which counts say nothing about how common a prefix is or where prompts diverge."""

_FILL_LIMIT = 0.9
"""Part of its share up to which a replica gets new affinity keys.

The rest is reserved for growth of its own.
"""


class RecentTraffic:
    """The last requests: their prefixes and the owners of their affinity keys.

    The affinity key of a prompt is its shortest prefix that is rare enough for one replica to serve all
    requests with it. So prompts that share a long prefix and differ later go to one replica, turns of one
    conversation stay together, and a first block that every prompt has, or a prefix that half of them have,
    binds nothing.
    """

    def __init__(self, most: int) -> None:
        """Keep the last `most` requests."""
        self._most = most
        self._requests: deque[tuple[RequestKey, BlockKey]] = deque()
        self._prefixes: Counter[BlockKey] = Counter()
        self._affinity_keys: Counter[BlockKey] = Counter()
        self._owners: dict[BlockKey, str] = {}
        self._load: Counter[str] = Counter()

    def affinity_key(self, key: RequestKey, share: float) -> BlockKey:
        """Return the shortest prefix that at most a `share` of requests have and at which prompts diverge.

        Where all prefixes are more common than that, the longest one is returned. Where one conversation is
        all the traffic, its turns diverge nowhere: its key is its first block.
        """
        most = max(_FEW, share * len(self._requests))
        counts = [self._prefixes[block] for block in key]
        index = next((i for i, count in enumerate(counts) if count <= most), len(key) - 1)
        while index > 0 and counts[index - 1] - counts[index] <= _FEW:
            index -= 1
        return key[index]

    def owner(self, affinity_key: BlockKey, order: Sequence[str], share: float) -> str:
        """Return the owner of the key, or a new owner if it exceeds its share and another replica has room.

        `order` has the candidates, the preferred one first; the present owner may be missing, for this one
        request. A replica may own the keys of a `share` of all requests.
        """
        limit = max(_FEW, share * (len(self._requests) + 1))
        owner, own = self._owners.get(affinity_key), self._affinity_keys[affinity_key]
        if owner is not None and self._load[owner] < limit:
            return owner
        with_room = (replica for replica in order if self._load[replica] + own < _FILL_LIMIT * limit)
        return next(with_room, owner or min(order, key=lambda replica: self._load[replica]))

    def owned_by(self, replica: str) -> int:
        """Return the number of recent requests whose keys the replica owns."""
        return self._load[replica]

    def add(self, key: RequestKey, affinity_key: BlockKey, owner: str) -> None:
        """Record a request and make `owner` the owner of its key; the oldest request is removed."""
        self._move(affinity_key, owner)
        self._requests.append((key, affinity_key))
        self._prefixes.update(key)
        self._affinity_keys[affinity_key] += 1
        self._load[owner] += 1
        if len(self._requests) > self._most:
            self._remove(*self._requests.popleft())

    def move_to(self, replica: str, prefers: Callable[[BlockKey, str], bool]) -> None:
        """Make the replica the owner of every key for which `prefers(key, present owner)` is true."""
        for affinity_key, owner in self._owners.items():
            if prefers(affinity_key, owner):
                self._move(affinity_key, replica)

    def remove_replica(self, replica: str) -> None:
        """Remove a replica: it owns nothing any more."""
        for affinity_key in [key for key, owner in self._owners.items() if owner == replica]:
            del self._owners[affinity_key]
        del self._load[replica]

    def _move(self, affinity_key: BlockKey, owner: str) -> None:
        if (before := self._owners.get(affinity_key)) is not None:
            self._load[before] -= self._affinity_keys[affinity_key]
        self._load[owner] += self._affinity_keys[affinity_key]
        self._owners[affinity_key] = owner

    def _remove(self, key: RequestKey, affinity_key: BlockKey) -> None:
        for block in key:
            _decrease(self._prefixes, block)
        if (owner := self._owners.get(affinity_key)) is not None:
            _decrease(self._load, owner)
        _decrease(self._affinity_keys, affinity_key)
        if affinity_key not in self._affinity_keys:
            self._owners.pop(affinity_key, None)


def _decrease(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
