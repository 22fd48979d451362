"""Interface of a balancing policy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, TypeVar

from router.policies.request_key import RequestKey


class Candidate(Protocol):
    """A replica that a policy may choose."""

    @property
    def identity(self) -> str:
        """Name that is the same for every router, and after restarts if the deployment names its replicas."""

    @property
    def load(self) -> int:
        """Sequences at the replica, those of other routers included; queued sequences count twice."""


C = TypeVar("C", bound=Candidate)


class Policy(ABC):
    """Choose the replica of a new sequence: one decision."""

    @abstractmethod
    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        """Return one of `candidates` (at least one) for a request with this key; must not block.

        Replicas of the pool may be missing among the candidates if they cannot serve this request.
        """


def least_loaded(candidates: Sequence[C]) -> C:
    """Return the candidate with the smallest load; the first one of equals."""
    return min(candidates, key=lambda candidate: candidate.load)
