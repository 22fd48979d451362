"""The interface between drafting and a sub-drafter; the base classes are those without a sub-drafter."""

from collections.abc import Sequence

from fly.messages import ProposalCounts
from services.engine.sequence import EngineSequence


class Proposer:
    """A source of proposals for the whole lifetime of one sequence; this base proposes nothing."""

    @property
    def should_wait(self) -> bool:
        """A request is pending whose response is expected before a forward would end."""
        return False

    def propose(self, sequence: EngineSequence, max_tokens: int) -> tuple[int, ...]:
        """Return a continuation of the sequence, at most `max_tokens` long, without waiting.

        If there is none, the proposer may send a request to a sub-drafter; the model continues
        alone until the response arrives.
        """
        return ()

    async def wait(self) -> None:
        """Wait for the response to the latest request, until the timeout that the cost model sets."""

    def prefetch(self, sequence: EngineSequence, max_tokens: int) -> None:
        """Request a continuation of the finished draft while the target verifies it."""

    def record_draft(self, forwards: int, seconds: float, sub_drafter_tokens: int) -> ProposalCounts:
        """Record the cost of a draft; return the counts of requests since the previous draft."""
        return ProposalCounts()


class SubDrafterSession:
    """The session of a sequence at a sub-drafter; this base has none.

    Attributes:
        proposer: The source of its proposals.
    """

    def __init__(self) -> None:
        self.proposer = Proposer()

    def finish(self, ids: Sequence[int], decided: int) -> None:
        """Send the final sequence, of which `decided` tokens are decided. Called once, as the last call."""
