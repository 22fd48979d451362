"""What a request says and what a response tells."""

from dataclasses import dataclass

from fly.types import FinishReason, Mode, Verdict


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; temperature 0 is greedy.

    Attributes:
        stop_token_ids: Tokens that end the response, beside the model's end-of-sequence ids.
        seed: Drawn by the server where it is None; the response tells it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Speculation:
    """How to speculate; the server's defaults fill in what is None.

    Attributes:
        mode: Plain, exact or FLy.
        preset: Named rule that FLy starts from.
        draft_length: Draft tokens per round.
        window: Draft positions after a mismatch that must match.
        threshold: Entropy in nats below which a mismatch is refused.
        sub_drafter: Whether the drafter may use its sub-drafter.
    """

    mode: Mode | None = None
    preset: str | None = None
    draft_length: int | None = None
    window: int | None = None
    threshold: float | None = None
    sub_drafter: bool | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a response.

    Attributes:
        id: Its id.
        verdict: How it came to be in the response.
        choice: What the target itself takes here; differs from `id` only where it was rescued.
        entropy: Of the target's distribution here, in nats.
    """

    id: int
    verdict: Verdict
    choice: int
    entropy: float


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


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed response.

    Attributes:
        text: To append; whole characters. The text of a token may follow in a later chunk.
        tokens: Decided since the last chunk.
        request_id: In the first chunk, else empty.
        prompt_tokens: In the first chunk, else 0.
        finish_reason: In the last chunk, else None.
        statistics: In the last chunk, else None.
        warnings: In the last chunk.
    """

    text: str
    tokens: tuple[Token, ...]
    request_id: str
    prompt_tokens: int
    finish_reason: FinishReason | None
    statistics: Statistics | None
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response."""

    request_id: str
    text: str
    tokens: tuple[Token, ...]
    finish_reason: FinishReason | None
    statistics: Statistics
    prompt_tokens: int
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A token of tokenized text."""

    id: int
    text: str
