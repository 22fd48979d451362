"""The replica with the fewest sequences."""

from collections.abc import Sequence

from router.policies.base import C, Policy, lightest
from router.policies.key import RequestKey


class LeastLoad(Policy):
    """The first of equals wins."""

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        return lightest(candidates)
