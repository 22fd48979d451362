"""Like to like: prompts that begin alike go to one replica, which has their beginning in its cache.

Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam, 1608.01350), by rendezvous: every
router ranks the replicas for a beginning in the same order, whatever it has seen itself, and a replica that
comes or goes moves only the beginnings that it wins or leaves. A replica that carries more than its share is
passed over for the next in the order.

What of a prompt is ranked is its anchor: its shortest beginning that is not too common for one replica to
take all of it. So prompts meet that share a long prefix and differ later, turns of one conversation stay
together, and a first block that every prompt has, or a prefix that half of them have, pins nothing.
"""

import hashlib
import math
from collections import Counter, deque
from collections.abc import Sequence

from fly.blocks import BlockKey
from router.policies.base import C, Candidate, Policy, lightest
from router.policies.key import RequestKey

LOAD_FACTOR = 1.25
"""No replica gets a sequence that makes it carry more than so many times the mean."""

_LEAST_BOUND = 2
"""Sequences that a replica may carry in any case."""
_WINDOW = 1024
"""The last so many requests say what is common."""
_FEW = 8
"""Requests that say nothing yet: of what is common, and of where prompts part."""


class PrefixAffinity(Policy):
    """Remembers what recent prompts began with, and nothing of where they went."""

    def __init__(self) -> None:
        self._recent = RecentKeys(_WINDOW)

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        if not key:
            return lightest(candidates)
        anchor = self._recent.anchor(key, LOAD_FACTOR / len(candidates))
        bound = load_bound([candidate.weight for candidate in candidates])
        return next(c for c in ranked(candidates, anchor) if c.weight < bound)

    def chosen(self, candidate: Candidate, key: RequestKey) -> None:
        self._recent.add(key)


class RecentKeys:
    """How many of the last requests began with what."""

    def __init__(self, most: int) -> None:
        """Remembers the last `most` keys."""
        self._most = most
        self._keys: deque[RequestKey] = deque()
        self._counts: Counter[BlockKey] = Counter()

    def add(self, key: RequestKey) -> None:
        """Another request; the oldest one is forgotten."""
        self._keys.append(key)
        self._counts.update(key)
        if len(self._keys) > self._most:
            self._forget(self._keys.popleft())

    def anchor(self, key: RequestKey, share: float) -> BlockKey:
        """The shortest beginning that at most a `share` of requests have, and at which prompts part.

        Where one conversation is all the traffic, its turns part nowhere: it is anchored where it begins.
        """
        most = max(_FEW, share * len(self._keys))
        counts = [self._counts[block] for block in key]
        index = next((i for i, count in enumerate(counts) if count <= most), len(key) - 1)
        while index > 0 and counts[index - 1] - counts[index] <= _FEW:
            index -= 1
        return key[index]

    def _forget(self, key: RequestKey) -> None:
        for block in key:
            self._counts[block] -= 1
            if not self._counts[block]:
                del self._counts[block]


def load_bound(weights: Sequence[int]) -> int:
    """What a candidate's weight must lie below to take one more; that of the lightest always does."""
    return max(_LEAST_BOUND, math.ceil(LOAD_FACTOR * (sum(weights) + 1) / len(weights)))


def ranked(candidates: Sequence[C], anchor: BlockKey) -> list[C]:
    """The candidates in the order in which every router tries them for this anchor."""
    return sorted(candidates, key=lambda candidate: _rank(candidate.identity, anchor), reverse=True)


def _rank(identity: str, anchor: BlockKey) -> bytes:
    return hashlib.blake2b(identity.encode(), key=anchor, digest_size=8).digest()
