"""Each replica in its turn."""

from collections.abc import Sequence

from router.policies.base import C, Policy
from router.policies.key import RequestKey


class RoundRobin(Policy):
    """Goes by identity, so that replicas may come and go between two turns."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        ordered = sorted(candidates, key=lambda candidate: candidate.identity)
        chosen = next((c for c in ordered if c.identity > self._last), ordered[0])
        self._last = chosen.identity
        return chosen
