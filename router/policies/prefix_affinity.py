"""Prefix-aware routing: send prompts with a common prefix to the replica that has it cached.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 1608.01350), by rendezvous hashing:
every router ranks the replicas for a prefix in the same order, independent of the traffic it has seen, and
takes the first one with room. There are two bounds. Over the recent traffic no replica owns much more than
its share of requests: its prefixes of the lowest ranks go to the next replica in their order, as in a stable
matching, so that routers which see different requests agree. At the present moment no replica serves many
more sequences than the mean: a request above that goes to the next one, for this one time.
"""

import hashlib
import math
from collections.abc import Sequence

from flyserve.core.blocks import BlockKey
from router.policies.base import C, Candidate, Policy, least_loaded
from router.policies.recent_traffic import Rank, RecentTraffic
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
        ranks = {candidate.identity: _rank(candidate, affinity_key) for candidate in candidates}
        order = sorted(candidates, key=lambda candidate: ranks[candidate.identity], reverse=True)
        ranked = {candidate.identity: ranks[candidate.identity] for candidate in order}
        owner = traffic.owner(affinity_key, ranked, share)
        traffic.add(key, affinity_key, owner, ranks[owner])
        order.sort(key=lambda candidate: candidate.identity != owner)
        bound = load_bound([candidate.load for candidate in candidates])
        return next(candidate for candidate in order if candidate.load < bound)


def load_bound(loads: Sequence[int]) -> int:
    """Return the load that a candidate must be below to get one more; the least loaded one always is."""
    mean = (sum(loads) + 1) / len(loads)
    return math.ceil(mean + max((LOAD_FACTOR - 1) * mean, _DEVIATIONS * math.sqrt(mean)))


def _rank(candidate: Candidate, affinity_key: BlockKey) -> Rank:
    return hashlib.blake2b(candidate.identity.encode(), key=affinity_key, digest_size=8).digest()
