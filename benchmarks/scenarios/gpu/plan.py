"""The plan of a measurement on a GPU, and its models: 8B and 1B on a GPU, tiny ones on a CPU."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, Self

from pydantic import Field

from benchmarks.aligned_pair.recipe import PairRecipe, Shape
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.harness.system import BUILD

Device = Literal["cpu", "cuda"]
CPU: Final = "cpu"
GPU: Final = "cuda"
DRAFT_LENGTH = 15
_PAIR = PairRecipe(
    target=Shape(4096, 14336, 32, 32, 8),  # the sizes of Llama 3.1 8B
    drafter=Shape(2048, 8192, 16, 32, 8),  # the sizes of Llama 3.2 1B, whose head is not tied here
    vocab_size=128_256,
    context_length=8192,
    peak=20.0,
)
_TINY = PairRecipe(
    target=Shape(128, 256, 3, 4, 2), drafter=Shape(64, 128, 2, 4, 2), vocab_size=1024, context_length=1024
)
_CHAOS = 1.0
"""Noise at which every choice depends on all weights and the whole context, so that an error shows."""


class Case(NamedTuple):
    """The shape of one forward: sequences with this context, and the new rows of each."""

    context: int
    sequences: int
    rows: int


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring; shapes are replaced by tiny ones on a CPU.

    Attributes:
        device: `auto` takes a GPU if there is one.
        models: Folder of the models, 18 GB for those of a GPU; built there unless they exist.
        noise: Noise of both models, which sets how often they agree (`aligned_pair`).
        cases: Context, sequences and rows of the forwards that are measured.
        measure_s: Longest time for one case.
        exact_prompts: Lengths of the prompts that are decoded as by transformers.
        exact_tokens: New tokens of each.
        streams: Numbers of concurrent requests.
        window_s: Length of a window of one way of decoding.
        repeat: Windows of each way of decoding, after one that does not count.
        serve_s: Time of serving after which no further number of requests is begun.
        total_s: Time of the whole run after which no further part or number of requests is begun.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    models: Path = BUILD / "gpu"
    noise: Annotated[float, Field(ge=0)] = 0.08
    cases: Annotated[tuple[Case, ...], Quick((Case(512, 1, 1), Case(512, 1, 16)))] = (
        *(Case(512, sequences, rows) for sequences in (1, 4, 16, 64) for rows in (1, 16)),
        *(Case(4096, sequences, rows) for sequences in (1, 16) for rows in (1, 16)),
    )
    measure_s: Annotated[float, Field(gt=0), Quick(0.5)] = 2.0
    exact_prompts: Annotated[tuple[int, ...], Quick((5, 17))] = (5, 17, 130)
    exact_tokens: Annotated[int, Field(ge=17), Quick(33)] = 96
    streams: Annotated[tuple[int, ...], Quick((1,))] = (1, 8, 32)
    window_s: Annotated[float, Field(gt=0), Quick(1.0)] = 3.0
    repeat: Annotated[int, Field(ge=1), Quick(1)] = 3
    serve_s: Annotated[float, Field(gt=0)] = 150.0
    total_s: Annotated[float, Field(gt=0)] = 540.0

    def on(self, device: Device) -> Self:
        """Return the plan for this device."""
        if device == GPU:
            return replace(self, device=device)
        return replace(
            self,
            device=device,
            cases=(Case(32, 1, 1), Case(32, 2, 4)),
            measure_s=min(self.measure_s, 0.05),
            exact_prompts=(5, 17),
            exact_tokens=min(self.exact_tokens, 33),
            streams=tuple(number for number in self.streams if number <= 2) or (2,),
            window_s=min(self.window_s, 1.0),
            repeat=1,
        )

    @property
    def pair(self) -> PairRecipe:
        """The pair that is served."""
        return replace(_PAIR if self.device == GPU else _TINY, noise=self.noise)

    @property
    def chaos(self) -> PairRecipe:
        """The pair whose target, of the drafter's sizes, is compared with transformers."""
        return replace(self.pair, target=self.pair.drafter, drafter=_TINY.drafter, noise=_CHAOS)
