"""The core nouns: sampling, the rule's parameters, evidence, verdicts, decisions.

What there is of every token is a named tuple: a router makes dozens in a round, each for a third of the time.
"""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple


class Mode(StrEnum):
    """How a response is decoded."""

    PLAIN = "plain"
    """One token at a time, without drafts."""
    EXACT = "exact"
    """Drafts; only the target's own tokens are kept."""
    FLY = "fly"
    """Drafts; mismatches are kept where the rule allows."""


class DraftLengthPolicy(StrEnum):
    """Who says how long a draft is."""

    FIXED = "fixed"
    """All are as long as they were asked to be."""
    GOODPUT = "goodput"
    """Each is as long as gives the most tokens per second at the present load, or none."""


class Verdict(Enum):
    """How a token came to be in the response."""

    EXACT = "exact"
    """A draft that equals the target's choice."""
    RESCUED = "rescued"
    """A draft that differs from the target's choice and was kept by the rule."""
    CORRECTED = "corrected"
    """The target's choice in place of a rejected draft."""
    BONUS = "bonus"
    """The target's choice after a wholly accepted draft."""
    PLAIN = "plain"
    """The target's choice in a round without a draft."""

    # Members are single objects; an enumeration's own hash, by name, is a call in Python for every look-up.
    __hash__ = object.__hash__


class RejectionReason(Enum):
    """Why a mismatch was not kept."""

    EXACT = "exact"
    """The mode keeps the target's own tokens only."""
    GATE = "gate"
    """The target was sure: its entropy lies below the threshold."""
    WINDOW = "window"
    """Another mismatch follows within the window."""
    TAIL = "tail"
    """Too few draft positions follow to fill the window."""
    GUARD = "guard"
    """A guard protects this position."""


class Tail(StrEnum):
    """What becomes of a mismatch whose window reaches beyond the draft."""

    REJECT = "reject"
    CARRY = "carry"


class FinishReason(Enum):
    """Why a response ended."""

    LENGTH = "length"
    """max_new_tokens or the context was reached."""
    STOP_TOKEN = "stop_token"
    """An end-of-sequence or stop token; it is the last token."""
    STOP_STRING = "stop_string"
    """A stop string; the text ends before it."""


class EntropyEstimator(StrEnum):
    """How the target's uncertainty is measured."""

    TOP_K = "top_k"
    """`-sum p ln p` over the three largest probabilities of the full softmax, in nats, not renormalised."""
    NORMALIZED = "normalized"
    """Entropy over the whole vocabulary divided by ln |V| (the paper's equation)."""


class Coupling(StrEnum):
    """How the random choices of drafter and target are tied together; at temperature 0 there are none."""

    SHARED_NOISE = "shared_noise"
    """Both take `argmax(log p + g)` with the same hashed noise: exact mode then equals plain decoding."""
    REJECTION = "rejection"
    """Modified rejection sampling (Chen et al., 2302.01318): a draft is accepted with min(1, p / q)."""


@dataclass(frozen=True, slots=True)
class SparseDistribution:
    """A distribution over a few tokens: exactly what a draft was drawn from.

    Attributes:
        ids: Distinct token ids, at most 64.
        probabilities: As many, positive; their sum is 1 up to rounding.
    """

    ids: tuple[int, ...]
    probabilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities at one position, of the raw logits' softmax.

    Attributes:
        draft: Of the draft token; None where there is none.
        choice: Of the token that the target itself takes.
        top: The most likely tokens with theirs, in descending order; as many as were asked for.
    """

    draft: float | None
    choice: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one sequence's tokens are drawn from the logits; temperature 0 is greedy.

    Attributes:
        coupling: How drafter's and target's random choices are tied together.
        stop_token_ids: Tokens that end the response, the model's end-of-sequence ids included.
        min_tokens: No stop token is chosen before this many response tokens.
        ignore_eos: Stop tokens do not end the response.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0
    coupling: Coupling = Coupling.SHARED_NOISE

    @property
    def ending_ids(self) -> frozenset[int]:
        """The tokens that end the response: none under `ignore_eos`."""
        return frozenset() if self.ignore_eos else frozenset(self.stop_token_ids)


@dataclass(frozen=True, slots=True)
class FlyRule:
    """Parameters of the FLy rule; an infinite threshold makes it exact.

    Attributes:
        threshold: Entropy below which a mismatch is rejected, in the estimator's unit.
        window: Draft positions after a mismatch that must all be natively accepted.
        min_following: Draft positions that must follow a mismatch in its draft (tail: reject).
        shrinks: For short drafts of n tokens the window and `min_following` shrink to n - 1 (vLLM).
        tail: What becomes of a mismatch whose window reaches beyond the draft.
        carry_after: Following matches that must have been seen before a window is carried.
        entropy: The estimator that the target is asked for.
        guard_stops: A stop token is never rescued, never overruled, and no window reaches across one.
        guard_excluded: A draft that the sampling filters exclude is never rescued.
        strict_prefix_tokens: The first tokens of a response are exact.
    """

    threshold: float
    window: int
    min_following: int
    shrinks: bool = False
    tail: Tail = Tail.REJECT
    carry_after: int = 2
    entropy: EntropyEstimator = EntropyEstimator.TOP_K
    guard_stops: bool = False
    guard_excluded: bool = False
    strict_prefix_tokens: int = 0


class Position(NamedTuple):
    """The target's word on one draft token.

    Attributes:
        token: The draft.
        choice: The token that the target itself takes here.
        entropy: Of the target's distribution here, in the rule's unit.
        excluded: The sampling filters exclude the draft.
        is_bonus: Not a draft but the target's extra choice, kept behind a draft whose window is carried.
    """

    token: int
    choice: int
    entropy: float
    excluded: bool = False
    is_bonus: bool = False

    @property
    def is_match(self) -> bool:
        """The draft is what the target itself takes."""
        return self.token == self.choice


@dataclass(frozen=True, slots=True)
class Evidence:
    """The target's word on one draft.

    Attributes:
        positions: One per draft token; empty in a round without a draft.
        extra_choice: The token that the target takes after the last draft.
        extra_entropy: Of its distribution there.
    """

    positions: tuple[Position, ...]
    extra_choice: int
    extra_entropy: float


class DecidedToken(NamedTuple):
    """A token of the response, for good.

    Attributes:
        token: Its id.
        verdict: How it came to be.
        choice: What the target itself takes here; differs from `token` only where it was rescued.
        entropy: Of the target's distribution here.
    """

    token: int
    verdict: Verdict
    choice: int
    entropy: float


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """Where a response must end.

    Attributes:
        max_new_tokens: Most response tokens, at least 1.
        ending_ids: Tokens behind which it ends.
    """

    max_new_tokens: int
    ending_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RuleState:
    """What the rule remembers of one sequence between rounds.

    Attributes:
        num_decided: Response tokens decided so far.
        provisional: From the open mismatch on: verified, kept, not decided. Empty unless a window is carried.
    """

    num_decided: int = 0
    provisional: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one round.

    Attributes:
        decided: Tokens to emit, in order.
        provisional: Tokens to keep after them for now.
        rejection: Why the first mismatch that was not kept was rejected; None where none was.
    """

    decided: tuple[DecidedToken, ...]
    provisional: tuple[int, ...] = ()
    rejection: RejectionReason | None = None
