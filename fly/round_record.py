"""One round of a response, as one value for all that learn from it."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from fly.messages import Draft, Verification
from fly.types import Decision


class DraftOrigin(Enum):
    """Origin of the draft that a round verified."""

    NONE = "none"
    """The round had no draft."""
    PREDICTION = "prediction"
    """The request predicts the response."""
    GRAMMAR = "grammar"
    """The grammar of the request forces the text."""
    DRAFTER = "drafter"
    """A drafter, by its model or by look-up."""


class ArrivedDraft(NamedTuple):
    """A drafter's draft that has arrived, cut to the tokens that still fit.

    Attributes:
        draft: The tokens after the sequence as it is now; none if other tokens were decided meanwhile.
        whole: The draft as it arrived.
        num_confirmed: First tokens of the draft that were decided meanwhile.
        spent_s: Seconds from its request to its arrival.
        waited_s: Seconds of the round in which nothing happened but the wait for it.
    """

    draft: Draft
    whole: Draft
    num_confirmed: int
    spent_s: float
    waited_s: float = 0.0


class RoundRecord(NamedTuple):
    """A round that has ended; times in seconds, readings of one clock.

    Attributes:
        start: Length of the sequence before the draft, in tokens, provisional ones included.
        decided_length: Tokens of the sequence that will never be rolled back, after the round.
        is_last: True if the response has ended.
        decision: What was decided.
        started_s: Reading at the beginning.
        answered_s: Reading at the answer of the model that decided.
        answer_s: Seconds from the request of that answer to it.
        origin: Origin of the draft.
        drafts: Tokens that were verified.
        num_accepted: First ones of them that the sequence keeps, decided or provisional.
        answer: The target's answer; None if no target took part.
        is_extension: True if the target decoded `answer.choices` by itself, one forward each.
        arrived: Drafts that a drafter returned in the round, in order: several if some did not fit.
        late_s: Seconds of a wait for a draft that did not arrive in time; None if none was late.
        is_missed: True if a draft was wanted, and no drafter was available.
    """

    start: int
    decided_length: int
    is_last: bool
    decision: Decision
    started_s: float
    answered_s: float
    answer_s: float
    origin: DraftOrigin = DraftOrigin.NONE
    drafts: tuple[int, ...] = ()
    num_accepted: int = 0
    answer: Verification | None = None
    is_extension: bool = False
    arrived: Sequence[ArrivedDraft] = ()
    late_s: float | None = None
    is_missed: bool = False

    @property
    def is_free(self) -> bool:
        """True if the draft cost nothing, so that the round says nothing about a drafter."""
        return self.origin is DraftOrigin.PREDICTION or self.origin is DraftOrigin.GRAMMAR

    @property
    def num_steps(self) -> int:
        """Forwards of the target, one token each if it decoded by itself."""
        return len(self.answer.choices) if self.is_extension and self.answer is not None else 1

    @property
    def is_open(self) -> bool:
        """True if provisional tokens follow the decided ones; a later round decides them."""
        return bool(self.decision.provisional)

    @property
    def is_prefill(self) -> bool:
        """True if the target also computed tokens before the round's, so that its time is not typical."""
        return self.answer is not None and self.answer.times.prefill_tokens > 0

    @property
    def forward_s(self) -> float:
        """Seconds inside the target's forwards; 0 if they are unknown."""
        return self.answer.times.forward_ns * 1e-9 if self.answer is not None else 0.0


class Learner(Protocol):
    """Something that learns from the rounds of one response."""

    def record(self, round: RoundRecord) -> None:
        """Record a round, once, after its decision."""
