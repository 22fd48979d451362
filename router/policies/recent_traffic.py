"""Recent traffic of a pool: prompt prefixes, how common each is, and the owner of each affinity key."""

from collections import Counter, defaultdict, deque
from collections.abc import Hashable, Mapping
from typing import TypeVar

from flyserve.core.blocks import BlockKey
from router.policies.request_key import RequestKey

K = TypeVar("K", bound=Hashable)
Rank = bytes
"""Rank of a key at a replica: the same for every router, and like a random number."""

_FEW = 8
"""Number of requests below which counts say nothing about how common a prefix is or where prompts diverge."""

_FILL_LIMIT = 0.9
"""Part of its share up to which a replica gets new affinity keys.

The rest is for growth of its own, and keeps a key from moving to and fro.
"""

_HOT = 0.5
"""Part of a replica's share above which a key comes before all others, which fit beside it elsewhere."""


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
        self._owned: defaultdict[str, dict[BlockKey, Rank]] = defaultdict(dict)
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

    def owner(self, affinity_key: BlockKey, ranks: Mapping[str, Rank], share: float) -> str:
        """Return the owner of the key: the first replica with room for it.

        `ranks` has the candidates, the preferred one first, and the rank of the key at each. A replica has
        room if this key and those that come before it there have at most a `share` of all requests; a little
        less for a key that another one owns. The other keys there move at their next request.

        NOTE: so the owner follows from the ranks and from how common the keys are, hardly from the order of
        the requests, and routers that see different requests agree.
        """
        limit, own = max(_FEW, share * (len(self._requests) + 1)), self._affinity_keys[affinity_key]
        present = self._owners.get(affinity_key)
        others = {replica: self._load[replica] - own * (replica == present) for replica in ranks}
        for replica, rank in ranks.items():
            most = (limit if replica == present else _FILL_LIMIT * limit) - own
            if others[replica] < most or self._num_before(replica, own, rank, _HOT * limit) < most:
                return replica
        return min(ranks, key=others.__getitem__)

    def owned_by(self, replica: str) -> int:
        """Return the number of recent requests whose keys the replica owns."""
        return self._load[replica]

    def add(self, key: RequestKey, affinity_key: BlockKey, owner: str, rank: Rank) -> None:
        """Record a request; make `owner`, where its key has this `rank`, the owner of the key.

        The oldest request is removed.
        """
        self._release(affinity_key)
        self._owners[affinity_key] = owner
        self._owned[owner][affinity_key] = rank
        self._requests.append((key, affinity_key))
        self._prefixes.update(key)
        self._affinity_keys[affinity_key] += 1
        self._load[owner] += self._affinity_keys[affinity_key]
        if len(self._requests) > self._most:
            self._remove(*self._requests.popleft())

    def _num_before(self, replica: str, own: int, rank: Rank, hot: float) -> int:
        """Return the requests with keys of the replica that come before one of `own` requests and `rank`.

        Those with more than `hot` requests come first, then those with a higher rank.
        """
        numbers, place = self._affinity_keys, (own > hot, rank)
        keys = self._owned[replica].items()
        return sum(numbers[key] for key, other in keys if (numbers[key] > hot, other) > place)

    def _release(self, affinity_key: BlockKey) -> None:
        if (owner := self._owners.pop(affinity_key, None)) is not None:
            del self._owned[owner][affinity_key]
            self._load[owner] -= self._affinity_keys[affinity_key]

    def _remove(self, key: RequestKey, affinity_key: BlockKey) -> None:
        for block in key:
            _decrease(self._prefixes, block)
        _decrease(self._affinity_keys, affinity_key)
        self._load[self._owners[affinity_key]] -= 1
        if affinity_key not in self._affinity_keys:
            self._release(affinity_key)


def _decrease(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
