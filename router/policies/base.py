"""What a balancing policy sees of a replica, and the one decision that it takes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, TypeVar

from router.policies.key import RequestKey


class Candidate(Protocol):
    """A replica that may be picked."""

    @property
    def identity(self) -> str:
        """The same for every router, and over restarts where the deployment names its replicas."""

    @property
    def weight(self) -> int:
        """Sequences that it carries, those of other routers included; the ones that wait count twice."""


C = TypeVar("C", bound=Candidate)


class Policy(ABC):
    """Picks the replica of a new sequence: one decision, and hooks."""

    @abstractmethod
    def choose(self, candidates: Sequence[C], key: RequestKey) -> C:
        """One of `candidates`, of which there is at least one, for a request with this key; must not wait.

        Replicas of the pool may be missing among the candidates, where they will not do for this request.
        """

    def joined(self, candidate: Candidate) -> None:
        """Hook: the replica is in the pool from now on."""
        return

    def left(self, candidate: Candidate) -> None:
        """Hook: the replica is in the pool no more."""
        return


def lightest(candidates: Sequence[C]) -> C:
    """The candidate of the least weight; the first of equals."""
    return min(candidates, key=lambda candidate: candidate.weight)
