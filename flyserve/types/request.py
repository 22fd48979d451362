"""What a request says."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fly.types import Coupling, DraftLengthPolicy, EntropyEstimator, Mode, Tail


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; temperature 0 is greedy.

    Attributes:
        logit_bias: Added to the logits of single tokens, by id.
        stop_token_ids: Tokens that end the response, beside the model's end-of-sequence ids.
        seed: Drawn by the server where it is None; the response tells it. Further choices get their own.
        coupling: How drafter's and target's random choices are tied together.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    coupling: Coupling = Coupling.SHARED_NOISE


@dataclass(frozen=True, slots=True)
class Speculation:
    """How to speculate; the server's defaults fill in what is None.

    Attributes:
        mode: Plain, exact or FLy.
        preset: Named rule that FLy starts from.
        draft_length: Draft tokens per round; at most, where the policy is `GOODPUT`.
        window: Draft positions after a mismatch that must match.
        threshold: Entropy below which a mismatch is rejected, in the unit of its measure.
        sub_drafter: Whether the drafter may use its sub-drafter.
        tail: What becomes of a mismatch whose window reaches beyond the draft.
        carry_after: Following matches that must have been seen before a window is carried.
        guard_stops: An end of the response is never rescued, never overruled, and ends every window.
        guard_excluded: A draft that the sampling filters exclude is never rescued.
        strict_prefix_tokens: The first tokens of a response are exact.
        entropy: How the target's uncertainty is measured.
        draft_length_policy: Who says how long a draft is; None is `FIXED` where `draft_length` is given.
    """

    mode: Mode | None = None
    preset: str | None = None
    draft_length: int | None = None
    window: int | None = None
    threshold: float | None = None
    sub_drafter: bool | None = None
    tail: Tail | None = None
    carry_after: int | None = None
    guard_stops: bool | None = None
    guard_excluded: bool | None = None
    strict_prefix_tokens: int | None = None
    entropy: EntropyEstimator | None = None
    draft_length_policy: DraftLengthPolicy | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    Attributes:
        role: system, user or assistant, or what else the model's chat template knows.
    """

    role: str
    content: str
