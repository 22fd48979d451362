"""Like to like: prompts that begin alike go to one replica, which has their beginning in its cache.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 1608.01350), by rendezvous: every
router ranks the replicas for a beginning in the same order, whatever it has seen itself, and takes the first
that has room. Room is meant twice. Of the traffic of late no replica is the home of much more than its share:
so homes differ in what they are asked, not in how much. And of the sequences of this moment none carries
much more than the mean: what would be too much goes to the next in the order, for this once.
"""

import hashlib
import math
from collections.abc import Sequence

from fly.blocks import BlockKey
from router.policies.anchors import RecentTraffic
from router.policies.base import C, Candidate, Policy, lightest
from router.policies.key import RequestKey

LOAD_FACTOR = 1.25
"""No replica is the home of more than so many times the mean traffic."""
_DEVIATIONS = 2.0
"""Standard deviations of an even load, by which chance alone makes replicas differ."""
_WINDOW = 1024
"""The last so many requests are the traffic of late."""


class PrefixAffinity(Policy):
    """Knows the homes of what was asked for of late, and nothing else of any prompt."""

    def __init__(self) -> None:
        self._traffic = RecentTraffic(_WINDOW)

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        if not key:
            return lightest(candidates)
        traffic, share = self._traffic, LOAD_FACTOR / len(candidates)
        anchor = traffic.anchor(key, share)
        order = ranked(candidates, anchor)
        home = traffic.home(anchor, [candidate.identity for candidate in order], share)
        traffic.add(key, anchor, home)
        order.sort(key=lambda candidate: candidate.identity != home)
        bound = load_bound([candidate.weight for candidate in candidates])
        return next(candidate for candidate in order if candidate.weight < bound)

    def joined(self, candidate: Candidate) -> None:
        self._traffic.move_to(
            candidate.identity,
            lambda anchor, home: _rank(candidate.identity, anchor) > _rank(home, anchor),
        )

    def left(self, candidate: Candidate) -> None:
        self._traffic.leave(candidate.identity)


def load_bound(weights: Sequence[int]) -> int:
    """What a candidate's weight must lie below to take one more; that of the lightest always does."""
    mean = (sum(weights) + 1) / len(weights)
    return math.ceil(mean + max((LOAD_FACTOR - 1) * mean, _DEVIATIONS * math.sqrt(mean)))


def ranked(candidates: Sequence[C], anchor: BlockKey) -> list[C]:
    """The candidates in the order in which every router tries them for this anchor."""
    return sorted(candidates, key=lambda candidate: _rank(candidate.identity, anchor), reverse=True)


def _rank(identity: str, anchor: BlockKey) -> bytes:
    return hashlib.blake2b(identity.encode(), key=anchor, digest_size=8).digest()
