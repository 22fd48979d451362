"""The ways of decoding that are compared, and the answer of one of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.harness.client import PLAIN, speculation
from fly.request import SpeculationParams
from fly.types import Mode

DRAFT_LENGTH = 15
LOOKUP_TOKENS = 10
"""The value in transformers' own documentation."""
WAYS = ("batched", "one by one", "transformers")
"""Ways in which the target's engine alone verifies many sequences."""


class Place(StrEnum):
    """Place where a way of decoding runs."""

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
        method: Its name in its place.
        is_plain: No drafts: it reads every weight once per token.
    """

    name: str
    place: Place
    method: str
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """One response.

    Attributes:
        tokens: New tokens.
        seconds: Time of the response.
        tau: Tokens per round with a draft; None without drafts, or if the place does not report it.
    """

    tokens: tuple[int, ...]
    seconds: float
    tau: float | None = None


Decode = Callable[[Sequence[int], int], Answer]
"""Function from a prompt and a number of new tokens to an answer."""

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
STACK_SPECULATIONS: Mapping[str, SpeculationParams] = {
    "plain": PLAIN,
    "exact": speculation(Mode.EXACT, DRAFT_LENGTH, sub_drafter=False),
    "fly": speculation(Mode.FLY, DRAFT_LENGTH, sub_drafter=False),
    "fly + sub-drafter": speculation(Mode.FLY, DRAFT_LENGTH, sub_drafter=True),
}
STREAM_METHODS = ("plain", "exact", "fly")
