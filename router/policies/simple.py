"""Balancing policies that look at no prompt."""

import random
from collections.abc import Sequence

from router.policies.base import C, Policy, least_loaded
from router.policies.request_key import RequestKey


class LeastLoad(Policy):
    """Choose the least loaded replica; the first one of equals."""

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        return least_loaded(candidates)


class PowerOfTwo(Policy):
    """Draw two replicas at random, choose the less loaded one.

    Many routers with the same slightly old loads do not all choose the same replica.
    """

    def __init__(self, source: random.Random | None = None) -> None:
        """Draw from `source`; by default from a new generator."""
        self._source = source or random.Random()

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        return least_loaded(self._source.sample(candidates, min(2, len(candidates))))


class RoundRobin(Policy):
    """Choose each replica in turn, by identity, so that replicas may join and leave between two turns."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        ordered = sorted(candidates, key=lambda candidate: candidate.identity)
        chosen = next((c for c in ordered if c.identity > self._last), ordered[0])
        self._last = chosen.identity
        return chosen
