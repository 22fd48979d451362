"""What a drafting session expects of a sub-drafter, and what stands for an absent one."""

from collections.abc import Sequence
from typing import Protocol

from fly.messages import GuessCounts
from services.drafter.drafting import Guesser, NoGuesser
from services.engine.sequence import EngineSequence


class SequenceGuesser(Guesser, Protocol):
    """A guesser that lives as long as its sequence."""

    async def wait(self) -> None:
        """Waits for the answer to the latest question, no longer than it is worth."""

    def tell(self, sequence: EngineSequence, max_tokens: int) -> None:
        """Shows a draft that is done and asks, while it is being verified, what may follow it."""

    def saw_draft(self, forwards: int, seconds: float, supplied: int) -> GuessCounts:
        """What a draft was made with; returns what has been asked since the draft before."""


class SequenceHelp(Protocol):
    """A sub-drafter's help for one sequence."""

    @property
    def guesser(self) -> SequenceGuesser:
        """Where its guesses are."""

    def conclude(self, ids: Sequence[int], decided: int) -> None:
        """What the sequence came to, of which `decided` tokens are final. Called once, last."""


class SilentGuesser(NoGuesser):
    """Never asks anybody."""

    async def wait(self) -> None:
        """There is nothing to wait for."""

    def tell(self, sequence: EngineSequence, max_tokens: int) -> None:
        """There is nobody to tell."""

    def saw_draft(self, forwards: int, seconds: float, supplied: int) -> GuessCounts:
        return GuessCounts()


class NoHelp:
    """Stands for the absent sub-drafter."""

    def __init__(self) -> None:
        self.guesser = SilentGuesser()

    def conclude(self, ids: Sequence[int], decided: int) -> None:
        """Nobody remembers it."""
