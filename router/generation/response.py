"""What a response is made of: pieces as they are decided, and what the deployment says of itself."""

from dataclasses import dataclass
from typing import NamedTuple

from fly.messages import ModelInfo
from fly.statistics import Statistics
from fly.types import DecidedToken, FinishReason, Mode
from router.requests.request import SpeculationParams


@dataclass(frozen=True, slots=True)
class RankedToken:
    """One of the most likely tokens at a position."""

    id: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities where a token was decided, of the target's raw softmax.

    Attributes:
        token: Of the token.
        choice: Of the target's own choice.
        top: The most likely tokens, in descending order.
    """

    token: float
    choice: float
    top: tuple[RankedToken, ...] = ()


class ResponseToken(NamedTuple):
    """A decided token as the client sees it.

    Attributes:
        text: What it adds to the text, withheld or not; empty while a character is incomplete.
        choice_text: Of the choice by itself, where it differs from the token.
        logprobs: Where they were asked for.
    """

    decided: DecidedToken
    text: str = ""
    choice_text: str = ""
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a choice, as a time line shows it; times in seconds.

    Attributes:
        index: From 0.
        drafted: Draft tokens verified.
        accepted: Draft tokens decided for good, those of an earlier round's open window included.
        start_s: Since the request came, like `end_s`.
        draft_s: Spent drafting, less the wire.
        verify_s: Spent verifying, less the wire.
        wire_s: On the wire, and in queues.
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
class Piece:
    """Tokens of one choice decided since the last piece, and text to append.

    Attributes:
        text: Whole characters; the text of a token may follow in a later piece.
        ending: Set in the last piece.
        rounds: Played since the last piece.
    """

    text: str
    tokens: tuple[ResponseToken, ...]
    ending: "Ending | None" = None
    rounds: tuple[Round, ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """How a choice ended and how it was made."""

    finish_reason: FinishReason
    statistics: Statistics
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a response comes of, beside its request."""

    mode: Mode
    seed: int
    weight_fingerprint: str
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of a response before its first token."""

    request_id: str
    prompt_tokens: int
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class DeploymentInfo:
    """What a deployment serves, and its limits."""

    target: ModelInfo
    drafter: ModelInfo | None
    default_speculation: SpeculationParams
    max_new_tokens_limit: int
    draft_length_limit: int
    choices_limit: int
    logprobs_limit: int
    presets: tuple[str, ...]
