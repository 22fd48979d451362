"""The lighter one of two replicas drawn at random."""

import random
from collections.abc import Sequence

from router.policies.base import C, Policy, lightest
from router.policies.key import RequestKey


class PowerOfTwo(Policy):
    """Where many routers know the same loads a moment late, they do not all run to the same replica."""

    def __init__(self, source: random.Random | None = None) -> None:
        """Draws from `source`; from one of its own by default."""
        self._source = source or random.Random()

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        return lightest(self._source.sample(candidates, min(2, len(candidates))))
