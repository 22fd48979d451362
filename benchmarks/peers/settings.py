"""The ways of decoding that are compared, and what one of them answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fly.request import DraftLength, SpeculationParams
from fly.types import Mode

DRAFT_LENGTH = 15
LOOKUP_TOKENS = 10
"""What transformers' own documentation uses."""


class Place(StrEnum):
    """Where a way of decoding runs."""

    TRANSFORMERS = "transformers"
    """A process of its own with transformers' own classes."""
    IN_PROCESS = "in process"
    """Engine, drafter and rule in one process, without a socket."""
    STACK = "gRPC stack"
    """Router, target, drafter and sub-drafter, each a process of its own."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way of decoding.

    Attributes:
        method: What its place calls it.
        is_plain: Without drafts: it reads every weight once per token.
    """

    name: str
    place: Place
    method: str
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """One response.

    Attributes:
        tokens: New ones.
        seconds: That they took.
        tau: Tokens per round with a draft; None where it is not told, or without a draft.
    """

    tokens: tuple[int, ...]
    seconds: float
    tau: float | None = None


Decode = Callable[[Sequence[int], int], Answer]
"""From a prompt and a number of new tokens to an answer."""

BASELINE = "transformers generate"
SETTINGS = (
    Setting(BASELINE, Place.TRANSFORMERS, "generate", is_plain=True),
    Setting("transformers assisted", Place.TRANSFORMERS, "assisted"),
    Setting("transformers prompt lookup", Place.TRANSFORMERS, "lookup"),
    Setting("in process, plain", Place.IN_PROCESS, "plain", is_plain=True),
    Setting("in process, exact", Place.IN_PROCESS, "exact"),
    Setting("in process, FLy", Place.IN_PROCESS, "fly"),
    Setting("stack, plain", Place.STACK, "plain", is_plain=True),
    Setting("stack, exact", Place.STACK, "exact"),
    Setting("stack, FLy", Place.STACK, "fly"),
    Setting("stack, FLy + sub-drafter", Place.STACK, "fly + sub-drafter"),
)
_LENGTH = DraftLength(max=DRAFT_LENGTH)
STACK_SPECULATIONS: Mapping[str, SpeculationParams] = {
    "plain": SpeculationParams(mode=Mode.PLAIN),
    "exact": SpeculationParams(mode=Mode.EXACT, draft_length=_LENGTH, sub_drafter=False),
    "fly": SpeculationParams(mode=Mode.FLY, draft_length=_LENGTH, sub_drafter=False),
    "fly + sub-drafter": SpeculationParams(mode=Mode.FLY, draft_length=_LENGTH, sub_drafter=True),
}
STREAM_METHODS = ("plain", "exact", "fly")
