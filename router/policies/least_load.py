"""The replica with the fewest sequences."""

from collections.abc import Sequence

from router.policies.base import C, Candidate


class LeastLoad:
    """Counts our own sequences and the reported ones, waiting ones twice; the first of equals wins."""

    def choose(self, candidates: Sequence[C]) -> C:
        return min(candidates, key=_weight)


def _weight(candidate: Candidate) -> int:
    """Our own count is always fresh, the reported one knows the other routers'."""
    return max(candidate.outstanding, candidate.load.sequences) + candidate.load.queued
