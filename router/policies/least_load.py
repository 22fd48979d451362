"""Least-load routing: send each request to the replica with the fewest sequences."""

from collections.abc import Sequence

from router.policies.base import C, Policy, least_loaded
from router.policies.request_key import RequestKey


class LeastLoad(Policy):
    """Choose the least loaded replica; the first one of equals."""

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        return least_loaded(candidates)
