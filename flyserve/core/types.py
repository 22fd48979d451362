"""Core types: enumerations, tokens, the rule's parameters, evidence and decisions.

Types of which there is one per token are named tuples: a router creates dozens of them in a round, and a
named tuple takes a third of the time of a dataclass.
"""

import math
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple


class Mode(StrEnum):
    """Decoding mode of a response."""

    PLAIN = "plain"
    """One token at a time, without drafts."""
    EXACT = "exact"
    """Drafts; only the target's own tokens are accepted."""
    FLY = "fly"
    """Drafts; mismatches are accepted if the rule allows."""
    DRAFT = "draft"
    """The drafter's own model decodes by itself; no target takes part."""


class Verdict(Enum):
    """Origin of a token of the response."""

    EXACT = "exact"
    """A draft token that equals the target's choice."""
    RESCUED = "rescued"
    """A draft token that differs from the target's choice and was accepted by the rule."""
    CORRECTED = "corrected"
    """The target's choice in place of a rejected draft token."""
    BONUS = "bonus"
    """The target's choice after a draft that was accepted as a whole."""
    PLAIN = "plain"
    """The target's choice in a round without a draft."""
    DRAFT = "draft"
    """The drafter's own token, which no target has verified (mode draft)."""

    # Members are single objects. The inherited hash, by name, costs a Python call for every look-up.
    __hash__ = object.__hash__


class RejectionReason(Enum):
    """Reason why a mismatch was rejected."""

    EXACT = "exact"
    """The mode accepts only the target's own tokens."""
    GATE = "gate"
    """The target was certain: its entropy is below the threshold."""
    WINDOW = "window"
    """Another mismatch follows within the window."""
    TAIL = "tail"
    """Too few draft positions follow to fill the window."""
    GUARD = "guard"
    """A guard protects this position."""


class TailPolicy(StrEnum):
    """Treatment of a mismatch whose window reaches beyond the draft."""

    REJECT = "reject"
    """The mismatch is rejected."""
    CARRY = "carry"
    """The mismatch waits, held back from the client, for the next draft."""


class FinishReason(Enum):
    """Reason why a response ended."""

    LENGTH = "length"
    """max_new_tokens or the context was reached."""
    STOP_TOKEN = "stop_token"
    """An end-of-sequence or stop token; it is the last token."""
    STOP_STRING = "stop_string"
    """A stop string; the text ends before it."""


class EntropyEstimator(StrEnum):
    """Estimator of the target's uncertainty."""

    TOP_K = "top_k"
    """`-sum p ln p` over the three largest probabilities of the full softmax, in nats, not renormalised."""
    NORMALIZED = "normalized"
    """Entropy over the whole vocabulary divided by ln |V| (the paper's equation)."""


class Coupling(StrEnum):
    """Relation between the random choices of drafter and target; without effect at temperature 0."""

    SHARED_NOISE = "shared_noise"
    """Both take `argmax(log p + g)` with the same hashed noise: exact mode then equals plain decoding."""
    REJECTION = "rejection"
    """Modified rejection sampling (Chen et al., 2302.01318): a draft is accepted with min(1, p / q)."""


@dataclass(frozen=True, slots=True)
class SparseDistribution:
    """A distribution over a few tokens: exactly the one that a draft token was drawn from.

    Attributes:
        ids: Distinct token ids, at most 64.
        probabilities: One per id, positive; their sum is 1 up to rounding.
    """

    ids: tuple[int, ...]
    probabilities: tuple[float, ...]

    @classmethod
    def certain(cls, token: int) -> "SparseDistribution":
        """Return the distribution of a token that is not drawn: it has all the mass.

        Modified rejection sampling then accepts the token with the target's probability of it, and otherwise
        draws from the target's other tokens: exact, wherever the token comes from.
        """
        return cls((token,), (1.0,))


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at one position, from the softmax of the raw logits.

    Attributes:
        draft: Log-probability of the draft token; None if there is none.
        choice: Log-probability of the target's own choice.
        top: The most likely tokens with theirs, in descending order; as many as were requested.
    """

    draft: float | None
    choice: float
    top: tuple[tuple[int, float], ...] = ()

    @property
    def gap(self) -> float:
        """Log-probability of the choice less that of the draft token, in nats; 0 if there is none."""
        return 0.0 if self.draft is None else self.choice - self.draft


@dataclass(frozen=True, slots=True)
class FlyRule:
    """Parameters of the FLy rule; an infinite threshold makes it exact.

    Attributes:
        threshold: Entropy below which a mismatch is rejected, in the estimator's unit.
        window: Draft positions after a mismatch that must all match the target's choice.
        min_following: Draft positions that must follow a mismatch in its draft (tail: reject).
        shrinks: For short drafts of n tokens the window and `min_following` shrink to n - 1 (vLLM).
        tail: Treatment of a mismatch whose window reaches beyond the draft.
        carry_after: Number of following matches that must have been seen before a window is carried.
        entropy: Estimator of the target's uncertainty.
        guard_stops: True: a stop token is never rescued, never overruled, and no window reaches across one.
        guard_excluded: True: a draft token that the sampling filters exclude is never rescued.
        strict_prefix_tokens: Number of tokens at the start of a response that are exact.
        max_logprob_gap: Largest log p(choice) - log p(draft), in nats by the target, at which a mismatch is
            rescued; None is no limit. An uncertain target may still find a draft far less likely than its
            own choice.
        reproducible_drafts: True: the drafts depend on the request alone. Every round waits for its draft,
            the first one included; all drafts, the last one included, have the same length; no draft copies
            an earlier response.
    """

    threshold: float
    window: int
    min_following: int
    shrinks: bool = False
    tail: TailPolicy = TailPolicy.REJECT
    carry_after: int = 2
    entropy: EntropyEstimator = EntropyEstimator.TOP_K
    guard_stops: bool = False
    guard_excluded: bool = False
    strict_prefix_tokens: int = 0
    max_logprob_gap: float | None = None
    reproducible_drafts: bool = False


class Position(NamedTuple):
    """The target's result on one draft token.

    Attributes:
        token: Draft token.
        choice: The target's own choice at this position.
        entropy: Entropy of the target's distribution at this position, in the rule's unit.
        excluded: True if the sampling filters exclude the draft token.
        is_bonus: True if this is not a draft token but the target's extra choice, after a draft whose window
            is carried.
        is_strict: True if only the target's own choice is accepted at this position, whatever the rule.
        logprob_gap: log p(choice) - log p(token) by the target, in nats; NaN if the target did not report it,
            and then a rule with a limit on it rescues nothing.
    """

    token: int
    choice: int
    entropy: float
    excluded: bool = False
    is_bonus: bool = False
    is_strict: bool = False
    logprob_gap: float = math.nan

    @property
    def is_match(self) -> bool:
        """The draft token equals the target's choice."""
        return self.token == self.choice


@dataclass(frozen=True, slots=True)
class Evidence:
    """The target's result on one draft.

    Attributes:
        positions: One per draft token; empty in a round without a draft.
        extra_choice: The target's choice after the last draft token.
        extra_entropy: Entropy of its distribution there.
    """

    positions: tuple[Position, ...]
    extra_choice: int
    extra_entropy: float


class RankedToken(NamedTuple):
    """One of the most likely tokens at a position."""

    id: int
    text: str
    logprob: float


class Logprobs(NamedTuple):
    """Log-probabilities at one position of a response, before penalties, temperature and filters.

    Attributes:
        token: Log-probability of the token.
        choice: Log-probability of the target's own choice.
        top: The most likely tokens, in descending order.
    """

    token: float
    choice: float
    top: tuple[RankedToken, ...] = ()


class PromptToken(NamedTuple):
    """One token of a prompt.

    Attributes:
        id: Token id.
        text: Text that the token adds to the prompt; empty while a character is incomplete.
        logprob: Log-probability of the token after those before it; None for the first one.
        top: The most likely tokens at its position, in descending order.
    """

    id: int
    text: str
    logprob: float | None = None
    top: tuple[RankedToken, ...] = ()


class Token(NamedTuple):
    """One decided token of a response.

    Attributes:
        id: Token id.
        verdict: Origin of the token.
        choice: The target's own choice at this position; differs from `id` only if the token was rescued. In
            mode draft, `id` itself.
        entropy: Entropy of the target's distribution at this position, in the unit of the rule's estimator;
            None in mode draft, and without log-probabilities where the verdict is `plain`.
        text: Text that the token adds to the response; empty while a character is incomplete. A stop string
            is part of it.
        choice_text: Text of the choice alone, if it differs from the token.
        logprobs: Log-probabilities, if they were requested.
    """

    id: int
    verdict: Verdict
    choice: int
    entropy: float | None
    text: str = ""
    choice_text: str = ""
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """Limits at which a response must end: its number of tokens, at least 1, and the tokens that end it."""

    max_new_tokens: int
    ending_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RuleState:
    """State of the rule for one sequence between rounds.

    Attributes:
        num_decided: Number of response tokens decided so far.
        provisional: Positions from the open mismatch on: verified and kept, but not decided. Empty unless a
            window is carried.
    """

    num_decided: int = 0
    provisional: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of one round.

    Attributes:
        decided: Tokens to emit, in order.
        provisional: Tokens to keep after them for now.
        rejection: Reason for the first rejected mismatch; None if none was rejected.
    """

    decided: tuple[Token, ...]
    provisional: tuple[int, ...] = ()
    rejection: RejectionReason | None = None
