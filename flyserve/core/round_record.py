"""One round of a response, as one value for all that learn from it."""

from enum import Enum
from typing import NamedTuple, Protocol

from flyserve.core.messages import Draft, StepTimes, Verification
from flyserve.core.types import Decision


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
        waited_s: Seconds of rounds that passed in the wait for it.
    """

    draft: Draft
    whole: Draft
    num_confirmed: int
    waited_s: float = 0.0

    @property
    def is_dropped(self) -> bool:
        """True if no token of it is left."""
        return bool(self.whole.tokens) and not self.draft.tokens


class RoundRecord(NamedTuple):
    """A round that has ended; times in seconds, readings of one clock.

    Attributes:
        is_last: True if the response has ended.
        decision: What was decided.
        started_s: Reading at the beginning.
        answered_s: Reading at the answer of the model that decided.
        answer_s: Seconds from the request of that answer to it.
        times: Durations of that step, as the model's service reports them.
        num_decoded: Tokens that the model decoded by itself, one forward each; 0 if it verified.
        origin: Origin of the draft.
        drafts: Tokens that were verified.
        num_accepted: First ones of them that the sequence keeps, decided or provisional.
        answer: The target's answer; None if no target took part.
        arrived: Drafts that a drafter returned in the round, in order: several if some did not fit.
        late_s: Seconds of a wait for a draft that did not arrive in time; None if none was late.
        is_missed: True if a draft was wanted, and no drafter was available.
    """

    is_last: bool
    decision: Decision
    started_s: float
    answered_s: float
    answer_s: float
    times: StepTimes
    num_decoded: int = 0
    origin: DraftOrigin = DraftOrigin.NONE
    drafts: tuple[int, ...] = ()
    num_accepted: int = 0
    answer: Verification | None = None
    arrived: tuple[ArrivedDraft, ...] = ()
    late_s: float | None = None
    is_missed: bool = False

    @property
    def is_free(self) -> bool:
        """True if the draft cost nothing, so that the round says nothing about a drafter."""
        return self.origin is DraftOrigin.PREDICTION or self.origin is DraftOrigin.GRAMMAR

    @property
    def is_prefill(self) -> bool:
        """True if the step also computed tokens before the round's, so that its time is not typical."""
        return self.times.prefill_tokens > 0

    @property
    def forward_s(self) -> float:
        """Seconds inside the forwards of the step; 0 if they are unknown."""
        return self.times.forward_ns * 1e-9

    def seconds(self) -> tuple[float, float, float]:
        """Return the seconds of the forwards of drafting and of verifying, and of all other waits."""
        draft_s = verify_s = 0.0
        wire_s = self.late_s or 0.0
        for arrived in self.arrived:
            forward_s = min(arrived.draft.times.forward_ns * 1e-9, arrived.waited_s)
            draft_s += forward_s
            wire_s += arrived.waited_s - forward_s
        if self.answer is not None:
            verify_s = self.forward_s
            wire_s += max(0.0, self.answer_s - verify_s)
        return draft_s, verify_s, wire_s


class Learner(Protocol):
    """Something that learns from the rounds of one response."""

    def record(self, round: RoundRecord) -> None:
        """Record a round, once, after its decision."""
