"""What a drafting session expects of a sub-drafter, and what stands for an absent one."""

from collections.abc import Sequence
from typing import Protocol

from fly.messages import ProposalCounts
from services.drafter.drafting import NullProposer, Proposer
from services.engine.sequence import EngineSequence


class SequenceProposer(Proposer, Protocol):
    """A proposer that lives as long as its sequence."""

    async def wait(self) -> None:
        """Waits for the answer to the latest question, no longer than it is worth."""

    def tell(self, sequence: EngineSequence, max_tokens: int) -> None:
        """Shows a draft that is done and asks, while it is being verified, what may follow it."""

    def saw_draft(self, forwards: int, seconds: float, sub_drafter_tokens: int) -> ProposalCounts:
        """What a draft was made with; returns what has been asked since the draft before."""


class SubDrafterSession(Protocol):
    """A sub-drafter's help for one sequence."""

    @property
    def proposer(self) -> SequenceProposer:
        """Where its proposals are."""

    def conclude(self, ids: Sequence[int], decided: int) -> None:
        """What the sequence came to, of which `decided` tokens are final. Called once, last."""


class SilentProposer(NullProposer):
    """Never asks anybody."""

    async def wait(self) -> None:
        """There is nothing to wait for."""

    def tell(self, sequence: EngineSequence, max_tokens: int) -> None:
        """There is nobody to tell."""

    def saw_draft(self, forwards: int, seconds: float, sub_drafter_tokens: int) -> ProposalCounts:
        return ProposalCounts()


class NoHelp:
    """Stands for the absent sub-drafter."""

    def __init__(self) -> None:
        self.proposer = SilentProposer()

    def conclude(self, ids: Sequence[int], decided: int) -> None:
        """Nobody remembers it."""
