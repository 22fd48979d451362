"""The interfaces between drafting and a sub-drafter, and their null implementations."""

from collections.abc import Sequence
from typing import Protocol

from fly.messages import ProposalCounts
from services.engine.sequence import EngineSequence


class Proposer(Protocol):
    """A source of proposals that a drafting job uses without waiting."""

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """Return a continuation of the sequence, at most `max_tokens` long; empty if there is none.

        If there is none, the proposer may send a request to a sub-drafter. The model continues alone until
        the response arrives.
        """

    @property
    def should_wait(self) -> bool:
        """A request is pending whose response is expected before a forward would end."""


class SequenceProposer(Proposer, Protocol):
    """A proposer for the whole lifetime of one sequence."""

    async def wait(self) -> None:
        """Wait for the response to the latest request, until the timeout that the cost model sets."""

    def prefetch(self, sequence: EngineSequence, max_tokens: int) -> None:
        """Request a continuation of the finished draft while the target verifies it."""

    def record_draft(self, forwards: int, seconds: float, sub_drafter_tokens: int) -> ProposalCounts:
        """Record the cost of a draft; return the counts of requests since the previous draft."""


class SubDrafterSession(Protocol):
    """The session of a sequence at a sub-drafter."""

    @property
    def proposer(self) -> SequenceProposer:
        """The source of its proposals."""

    def finish(self, ids: Sequence[int], decided: int) -> None:
        """Send the final sequence, of which `decided` tokens are decided. Called once, as the last call."""


class NullProposer:
    """A proposer without a sub-drafter: it proposes nothing."""

    should_wait = False

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        return ()

    async def wait(self) -> None:
        return None

    def prefetch(self, sequence: EngineSequence, max_tokens: int) -> None:
        return None

    def record_draft(self, forwards: int, seconds: float, sub_drafter_tokens: int) -> ProposalCounts:
        return ProposalCounts()


class NullSubDrafter:
    """The session of a sequence without a sub-drafter."""

    def __init__(self) -> None:
        self.proposer = NullProposer()

    def finish(self, ids: Sequence[int], decided: int) -> None:
        return None
