"""Power-of-two routing: draw two replicas at random, choose the less loaded one."""

import random
from collections.abc import Sequence

from router.policies.base import C, Policy, least_loaded
from router.policies.request_key import RequestKey


class PowerOfTwo(Policy):
    """Avoid herding: many routers with the same slightly old loads do not all choose the same replica."""

    def __init__(self, source: random.Random | None = None) -> None:
        """Draw from `source`; by default from a new generator."""
        self._source = source or random.Random()

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        return least_loaded(self._source.sample(candidates, min(2, len(candidates))))
