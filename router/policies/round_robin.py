"""Round-robin routing: each replica in turn."""

from collections.abc import Sequence

from router.policies.base import C, Policy
from router.policies.request_key import RequestKey


class RoundRobin(Policy):
    """Go through the replicas by identity, so that replicas may join and leave between two turns."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        ordered = sorted(candidates, key=lambda candidate: candidate.identity)
        chosen = next((c for c in ordered if c.identity > self._last), ordered[0])
        self._last = chosen.identity
        return chosen
