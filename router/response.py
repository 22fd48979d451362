"""What a response is made of: pieces as they are decided, and what the deployment says of itself."""

from dataclasses import dataclass

from fly.messages import ModelInfo
from fly.statistics import Statistics
from fly.types import Decided, FinishReason
from router.request import SpeculationParams


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens decided since the last piece, and text to append.

    Attributes:
        text: Whole characters; the text of a token may follow in a later piece.
        ending: Set in the last piece.
    """

    text: str
    tokens: tuple[Decided, ...]
    ending: "Ending | None" = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ended and how it was made."""

    finish_reason: FinishReason
    statistics: Statistics
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of a response before its first token."""

    request_id: str
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class DeploymentInfo:
    """What a deployment serves, and its limits."""

    target: ModelInfo
    drafter: ModelInfo | None
    default_speculation: SpeculationParams
    max_new_tokens_limit: int
    draft_length_limit: int
