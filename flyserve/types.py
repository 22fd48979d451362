"""What a request says and what a response tells."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fly.types import Coupling, DraftLengthPolicy, EntropyEstimator, FinishReason, Mode, Tail, Verdict


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
        threshold: Entropy below which a mismatch is refused, in the unit of its measure.
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
class RankedToken:
    """One of the most likely tokens at a position."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities at one position, before penalties, temperature and filters.

    Attributes:
        token: Of the token.
        choice: Of the target's own choice.
        top: The most likely tokens, in descending order.
    """

    token: float
    choice: float
    top: tuple[RankedToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a response.

    Attributes:
        id: Its id.
        verdict: How it came to be in the response.
        choice: What the target itself takes here; differs from `id` only where it was rescued.
        entropy: Of the target's distribution here, in the unit of the rule's measure.
        text: What it adds to the text; empty while a character is incomplete. A stop string is part of it.
        choice_text: Of the choice by itself, where it differs.
        logprobs: Where they were asked for.
    """

    id: int
    verdict: Verdict
    choice: int
    entropy: float
    text: str = ""
    choice_text: str = ""
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class Statistics:
    """How a response was made; times in seconds. The fields are those of the wire (generation.proto)."""

    rounds: int = 0
    drafted: int = 0
    emitted: int = 0
    accepted: int = 0
    rescued: int = 0
    rejected_by_exact: int = 0
    rejected_by_gate: int = 0
    rejected_by_window: int = 0
    rejected_by_tail: int = 0
    rejected_by_guard: int = 0
    tau: float = 0.0
    drafter_forwards: int = 0
    sub_drafter_tokens: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    wire_s: float = 0.0
    wire_bytes: int = 0
    time_to_first_token_s: float = 0.0
    total_s: float = 0.0
    seed: int = 0
    replays: int = 0
    draft_rounds: int = 0
    carried: int = 0
    guesses_asked: int = 0
    guesses_late: int = 0
    guesses_refused: int = 0
    guesses_weak: int = 0
    drafted_ahead: int = 0
    dropped_ahead: int = 0


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a choice; times in seconds, `start_s` and `end_s` since the request came.

    Attributes:
        drafted: Draft tokens verified.
        accepted: Draft tokens decided for good, those of an earlier round's open window included.
    """

    index: int
    drafted: int
    accepted: int
    start_s: float
    draft_s: float
    verify_s: float
    wire_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed response.

    Attributes:
        text: To append; whole characters. The text of a token may follow in a later chunk.
        tokens: Decided since the choice's last chunk.
        request_id: In the first chunk, else empty.
        prompt_tokens: In the first chunk, else 0.
        finish_reason: In the choice's last chunk, else None.
        statistics: In the choice's last chunk, else None.
        warnings: In the choice's last chunk.
        choice_index: The choice that this belongs to, from 0.
        rounds: Played since the choice's last chunk.
    """

    text: str
    tokens: tuple[Token, ...]
    request_id: str
    prompt_tokens: int
    finish_reason: FinishReason | None
    statistics: Statistics | None
    warnings: tuple[str, ...]
    choice_index: int = 0
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One way in which the prompt was continued."""

    index: int
    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason | None
    statistics: Statistics
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response; `text` and its like are those of the first choice.

    Attributes:
        choices: As many as were asked for, at least one.
    """

    request_id: str
    choices: tuple[Choice, ...]
    prompt_tokens: int
    warnings: tuple[str, ...]

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tokens(self) -> tuple[Token, ...]:
        return self.choices[0].tokens

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.choices[0].finish_reason

    @property
    def statistics(self) -> Statistics:
        return self.choices[0].statistics


@dataclass(frozen=True, slots=True)
class Model:
    """What a tier serves.

    Attributes:
        weight_fingerprint: Hash of the weights.
        context_length: Longest sequence in tokens; 0 is unlimited.
    """

    model_id: str
    weight_fingerprint: str
    architecture: str
    dtype: str
    vocab_size: int
    context_length: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a deployment serves.

    Attributes:
        drafter: None where there is none at present.
        presets: Named rules that FLy may start from.
        default_preset: The one that it starts from where a request names none.
        version: FlyServe's.
    """

    target: Model
    drafter: Model | None
    presets: tuple[str, ...]
    default_preset: str
    version: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A token of tokenized text."""

    id: int
    text: str
