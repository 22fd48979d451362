"""What a response tells."""

from dataclasses import dataclass

from fly.types import FinishReason, Verdict


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
    proposals_requested: int = 0
    proposals_late: int = 0
    proposals_invalid: int = 0
    proposals_low_confidence: int = 0
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
        tokens: DecidedToken since the choice's last chunk.
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
        resumed: Times that its stream broke and another one went on with it, token for token. The statistics
            of a choice then count from the last time, and its rounds are numbered again.
    """

    request_id: str
    choices: tuple[Choice, ...]
    prompt_tokens: int
    warnings: tuple[str, ...]
    resumed: int = 0

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
