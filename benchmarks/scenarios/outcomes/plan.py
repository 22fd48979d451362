"""The settings of the study, and the amount of measuring."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated

from pydantic import Field

from benchmarks.harness.command import BasePlan, Quick
from fly.types import Mode

DEMO, ALIGNED = "demo", "aligned"
"""The pairs, which are the parts of the scenario."""
TITLES = {DEMO: "the demo pair", ALIGNED: "the aligned pair"}
MODES = (Mode.EXACT, Mode.FLY)
TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Setting:
    """A pair and a way of decoding."""

    pair: str
    mode: Mode
    temperature: float
    draft_length: int

    @property
    def name(self) -> str:
        """Name of its part."""
        return f"{self.pair}-{self.mode}-{self.temperature:g}-{self.draft_length}"


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        prompts: Held-out problems of the demo pair.
        aligned_prompts: Prompts of the aligned pair.
        max_new_tokens: Longest response.
        draft_lengths: Tokens of a draft.
        branches: Numbers of outcomes that are prepared.
        context_tokens: Tokens of the sequences whose forwards are measured.
        repeat: Measurements of every size of a forward, of which the fastest counts.
        between_ms: Times of a round that belong to no forward: router and wire.
    """

    prompts: Annotated[int, Field(ge=2), Quick(4)] = 40
    aligned_prompts: Annotated[int, Field(ge=2), Quick(2)] = 12
    max_new_tokens: Annotated[int, Field(ge=2), Quick(48)] = 192
    draft_lengths: Annotated[tuple[int, ...], Quick((4, 15))] = (4, 6, 8, 15)
    branches: tuple[int, ...] = (1, 2, 4, 8)
    context_tokens: int = 256
    repeat: Annotated[int, Field(ge=1), Quick(3)] = 200
    between_ms: tuple[float, ...] = (0.0, 5.0)

    def settings(self, pair: str) -> Iterator[Setting]:
        """Yield the settings of a pair."""
        for each in product(MODES, TEMPERATURES, self.draft_lengths):
            yield Setting(pair, *each)
