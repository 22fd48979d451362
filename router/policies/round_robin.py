"""Each replica in its turn."""

from collections.abc import Sequence

from router.policies.base import C


class RoundRobin:
    """Goes by address, so that replicas may come and go between two turns."""

    def __init__(self) -> None:
        self._last = ""

    def choose(self, candidates: Sequence[C]) -> C:
        ordered = sorted(candidates, key=lambda candidate: candidate.address)
        chosen = next((c for c in ordered if c.address > self._last), ordered[0])
        self._last = chosen.address
        return chosen
