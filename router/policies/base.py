"""What a balancing policy sees of a replica, and the one decision that it takes."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from fly.messages import Load


class Candidate(Protocol):
    """A replica that may be picked."""

    @property
    def address(self) -> str:
        """host:port."""

    @property
    def outstanding(self) -> int:
        """Sequences that this router has open there."""

    @property
    def load(self) -> Load:
        """What the replica last said that it carries, for all routers."""


C = TypeVar("C", bound=Candidate)


class Policy(Protocol):
    """Picks the replica of a new sequence."""

    def choose(self, candidates: Sequence[C]) -> C:
        """One of `candidates`, of which there is at least one; must not wait."""
