"""The pairs, the ways of using the time of a verification, and the amount of measuring."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, NamedTuple

from pydantic import Field

from benchmarks.harness.client import speculation
from benchmarks.harness.command import BasePlan, Quick
from fly.request import SpeculationParams
from fly.types import Mode

DEMO, ALIGNED, SIMULATED = "demo", "aligned", "simulated"
PARTS = (DEMO, ALIGNED, SIMULATED)
"""The pairs, which are the parts of the scenario."""
MODES = (Mode.EXACT, Mode.FLY)


class Way(NamedTuple):
    """The use of the time in which the target verifies: the number of outcomes that are prepared."""

    outcomes: int

    @property
    def name(self) -> str:
        """Name in the tables."""
        return {0: "nothing", 1: "ahead"}.get(self.outcomes, f"{self.outcomes} outcomes")


NOTHING, AHEAD = Way(0), Way(1)


@dataclass(frozen=True, slots=True)
class Setting:
    """A way, with the parameters of its requests."""

    way: Way
    mode: Mode
    draft_length: int

    @property
    def name(self) -> str:
        """Name of its runs."""
        return f"{self.mode}, {self.way.name}, {self.draft_length}"

    @property
    def speculation(self) -> SpeculationParams:
        """The parameters of a request."""
        return speculation(self.mode, self.draft_length)


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        prompts: Held-out problems of the demo pair.
        aligned_prompts: Prompts of the aligned pair.
        simulated_prompts: Problems of the pair with simulated times.
        max_new_tokens: Longest response.
        draft_lengths: Tokens of a draft; each way counts by its best one.
        outcomes: Numbers of outcomes that are prepared, beside 0 and 1.
        dilation: Seconds of this machine for a simulated second.
        repeat: Repetitions of every prompt under every setting.
    """

    prompts: Annotated[int, Field(ge=2), Quick(2)] = 16
    aligned_prompts: Annotated[int, Field(ge=2), Quick(2)] = 8
    simulated_prompts: Annotated[int, Field(ge=2), Quick(2)] = 5
    max_new_tokens: Annotated[int, Field(ge=2), Quick(24)] = 128
    draft_lengths: Annotated[tuple[int, ...], Quick((6,))] = (4, 6, 8)
    outcomes: Annotated[tuple[int, ...], Quick((4,))] = (4,)
    dilation: Annotated[float, Field(ge=1)] = 3.0
    repeat: Annotated[int, Field(ge=1)] = 1

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways that are compared."""
        return NOTHING, AHEAD, *map(Way, self.outcomes)

    def settings(self) -> Iterator[Setting]:
        """Yield the settings of a pair."""
        for each in product(self.ways, MODES, self.draft_lengths):
            yield Setting(*each)
