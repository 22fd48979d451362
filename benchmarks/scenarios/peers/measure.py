"""The settings, and the interleaved run: every prompt under every setting, in an order that rotates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field

from benchmarks.harness.client import PLAIN, speculation
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.harness.load import Interleave
from fly.request import SpeculationParams
from fly.types import Mode
from flyserve.bench.comparison import rotated

DRAFT_LENGTH = 15
_WARM_UP_TOKENS = 32
LOOKUP_TOKENS = 10
"""The value in transformers' own documentation."""


class Place(StrEnum):
    """Place where a way of decoding runs."""

    TRANSFORMERS = "transformers"
    """A process of its own with transformers' own classes."""
    STACK = "gRPC stack"
    """Router, target, drafter and sub-drafter, each a process of its own."""
    LLAMA_CPP = "llama.cpp"
    """llama.cpp's server."""
    VLLM = "vLLM"
    """vLLM's own offline engine."""
    VLLM_STACK = "gRPC stack on vLLM"
    """Router and target on vLLM, each a process of its own."""


class Dtype(StrEnum):
    """Compute type of every model."""

    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class Setting:
    """One way of decoding.

    Attributes:
        method: Its name in its place.
        with_draft_model: True if it needs a draft model, False if it is for a target without one, None for
            both.
    """

    name: str
    place: Place
    method: str
    with_draft_model: bool | None = None


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
    Setting(BASELINE, Place.TRANSFORMERS, "generate"),
    Setting("transformers assisted", Place.TRANSFORMERS, "assisted", with_draft_model=True),
    Setting("transformers prompt lookup", Place.TRANSFORMERS, "lookup"),
    Setting("published FLy loop", Place.TRANSFORMERS, "published", with_draft_model=True),
    Setting("stack, plain", Place.STACK, "plain"),
    Setting("stack, exact", Place.STACK, "exact", with_draft_model=True),
    Setting("stack, FLy", Place.STACK, "fly", with_draft_model=True),
    Setting("stack, FLy official", Place.STACK, "official", with_draft_model=True),
    Setting("stack, FLy + sub-drafter", Place.STACK, "fly + sub-drafter", with_draft_model=True),
    Setting("stack, exact with suffix", Place.STACK, "exact", with_draft_model=False),
    Setting("stack, FLy with suffix", Place.STACK, "fly", with_draft_model=False),
    Setting("llama.cpp", Place.LLAMA_CPP, "plain", with_draft_model=False),
    Setting("vLLM generate", Place.VLLM, "plain", with_draft_model=False),
    Setting("stack on vLLM, plain", Place.VLLM_STACK, "plain", with_draft_model=False),
    Setting("stack on vLLM, exact with suffix", Place.VLLM_STACK, "exact", with_draft_model=False),
    Setting("stack on vLLM, FLy with suffix", Place.VLLM_STACK, "fly", with_draft_model=False),
)
# NOTE: another engine is one more place, its settings here, and a decoder in `_decoders` of this package, if
# there is a program that runs it.
PEERS = frozenset({Place.LLAMA_CPP, Place.VLLM, Place.VLLM_STACK})
"""Places that a machine may lack."""


def settings_of(has_drafter: bool, peers: frozenset[Place] = frozenset()) -> tuple[Setting, ...]:
    """Return the settings of a pair, or of a model without a drafter, with the `peers` that are here."""
    found = (each for each in SETTINGS if each.with_draft_model in (None, has_drafter))
    return tuple(each for each in found if each.place in peers or each.place not in PEERS)


STACK_SPECULATIONS: Mapping[str, SpeculationParams] = {
    "plain": PLAIN,
    "exact": speculation(Mode.EXACT, DRAFT_LENGTH, sub_drafter=False),
    "fly": speculation(Mode.FLY, DRAFT_LENGTH, sub_drafter=False),
    "official": speculation(Mode.FLY, DRAFT_LENGTH, sub_drafter=False, preset="official"),
    "fly + sub-drafter": speculation(Mode.FLY, DRAFT_LENGTH, sub_drafter=True),
}
STREAM_METHODS = ("plain", "exact", "fly")

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        repeat: Repetitions of every prompt under every setting.
        dtype: Compute type of every model, in every place.
        prompts: Prompts of every pair.
        max_new_tokens: Limit of every response; those of the demo pair end earlier.
        streams: Numbers of concurrent requests through the stack.
        llama_server: llama.cpp's program `llama-server`, measured with SmolLM2; None leaves it out.
    """

    repeat: Annotated[int, Quick(1)] = 3
    dtype: Dtype = Dtype.BFLOAT16
    prompts: Annotated[int, Field(ge=1, le=300), Quick(2)] = 8
    max_new_tokens: Annotated[int, Field(ge=1, le=512), Quick(32)] = 256
    streams: Annotated[tuple[int, ...], Quick((1, 4))] = (1, 4, 16)
    llama_server: Path | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One prompt under one setting, once."""

    prompt: int
    repetition: int
    answer: Answer

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second."""
        return len(self.answer.tokens) / self.answer.seconds


@dataclass(frozen=True, slots=True)
class StreamsRun:
    """Several concurrent requests under one setting, once."""

    method: str
    streams: int
    tokens_per_s: float


def measure_alone(
    decoders: Mapping[str, Decode],
    prompts: Prompts,
    max_new_tokens: int,
    repeat: int,
    interleave: Interleave[str, Run],
) -> dict[str, list[Run]]:
    """Measure one request at a time: every prompt under every setting, after a warm-up."""

    def measure(name: str, turn: int) -> Run:
        repetition, prompt = divmod(max(0, turn), len(prompts))
        limit = max_new_tokens if turn >= 0 else min(_WARM_UP_TOKENS, max_new_tokens)
        return Run(prompt, repetition, decoders[name](prompts[prompt], limit))

    return interleave(tuple(decoders), repeat * len(prompts), measure)


def measure_streams(
    rate: Callable[[str, Prompts], float],
    methods: Sequence[str],
    prompts: Prompts,
    counts: Sequence[int],
    repeat: int,
    interleave: Interleave[str, StreamsRun],
) -> list[StreamsRun]:
    """Measure several concurrent requests; smaller counts take other prompts in every repetition.

    `rate` returns tokens per second of a method and the prompts of one batch; `prompts` has as many as the
    largest of `counts`.
    """

    def measure(method: str, turn: int) -> StreamsRun:
        repetition, place = divmod(turn, len(counts))
        batch = rotated(prompts, repetition * counts[place])[: counts[place]]
        return StreamsRun(method, counts[place], rate(method, batch))

    found = interleave(methods, repeat * len(counts), measure, 0)
    return [run for runs in found.values() for run in runs]
