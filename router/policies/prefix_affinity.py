"""Prefix-aware routing: send prompts with a common prefix to the replica that has it cached.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 1608.01350), by rendezvous hashing:
every router ranks the replicas for a prefix in the same order, independent of the traffic it has seen, and
takes the first one with room. There are two bounds. Over the recent traffic no replica owns much more than
its share of requests. At the present moment no replica serves many more sequences than the mean: a request
above that goes to the next replica in the order, for this one time.
"""

import hashlib
import math
from collections.abc import Sequence

from flyserve.core.blocks import BlockKey
from router.policies.base import C, Candidate, Policy, least_loaded
from router.policies.recent_traffic import RecentTraffic
from router.policies.request_key import RequestKey

LOAD_FACTOR = 1.25
"""Upper bound of the traffic that one replica owns, as a multiple of the mean."""
_DEVIATIONS = 2.0
"""Standard deviations of an even load that are accepted as chance."""
_WINDOW = 1024
"""Number of requests that count as recent traffic."""


class PrefixAffinity(Policy):
    """Keeps the owners of recently requested prefixes, and no other state."""

    def __init__(self) -> None:
        self._traffic = RecentTraffic(_WINDOW)

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        if not key:
            return least_loaded(candidates)
        traffic, share = self._traffic, LOAD_FACTOR / len(candidates)
        affinity_key = traffic.affinity_key(key, share)
        order = ranked(candidates, affinity_key)
        owner = traffic.owner(affinity_key, [candidate.identity for candidate in order], share)
        traffic.add(key, affinity_key, owner)
        order.sort(key=lambda candidate: candidate.identity != owner)
        bound = load_bound([candidate.load for candidate in candidates])
        return next(candidate for candidate in order if candidate.load < bound)

    def joined(self, candidate: Candidate) -> None:
        self._traffic.move_to(
            candidate.identity,
            lambda key, owner: _rank(candidate.identity, key) > _rank(owner, key),
        )

    def left(self, candidate: Candidate) -> None:
        self._traffic.remove_replica(candidate.identity)


def load_bound(loads: Sequence[int]) -> int:
    """Return the load that a candidate must be below to get one more; the least loaded one always is."""
    mean = (sum(loads) + 1) / len(loads)
    return math.ceil(mean + max((LOAD_FACTOR - 1) * mean, _DEVIATIONS * math.sqrt(mean)))


def ranked(candidates: Sequence[C], affinity_key: BlockKey) -> list[C]:
    """Return the candidates in the order in which every router tries them for this key."""
    return sorted(candidates, key=lambda candidate: _rank(candidate.identity, affinity_key), reverse=True)


def _rank(identity: str, affinity_key: BlockKey) -> bytes:
    return hashlib.blake2b(identity.encode(), key=affinity_key, digest_size=8).digest()
