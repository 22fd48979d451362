"""The rules side by side, on problems as in training and on harder ones."""

from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from benchmarks.harness.client import PLAIN, speculation
from benchmarks.harness.command import BasePlan, Quick
from demo.corpus import Split
from flyserve.core.types import Mode, TailPolicy

DRAFT_LENGTH = 15
BASELINE = "plain"
FLYSERVE = speculation(Mode.FLY, DRAFT_LENGTH, preset="flyserve")
VLLM = replace(FLYSERVE, preset="vllm")
RULES = {
    BASELINE: PLAIN,
    "exact": speculation(Mode.EXACT, DRAFT_LENGTH),
    "official": replace(FLYSERVE, preset="official"),
    "vllm": VLLM,
    "paper": replace(FLYSERVE, preset="paper"),
    "flyserve": FLYSERVE,
    "entropy, carry": replace(VLLM, tail=TailPolicy.CARRY, guard_stops=True, strict_prefix_tokens=2),
}
"""Ways of decoding by name, in the order of the tables."""
TITLES = {"main": "The rules side by side", "hard": "Problems harder than trained on"}


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        problems: Held-out problems.
        hard_problems: Problems harder than those of training.
        concurrency: Concurrent requests.
    """

    problems: Annotated[int, Field(ge=2), Quick(9)] = 3000
    hard_problems: Annotated[int, Field(ge=2), Quick(6)] = 2000
    concurrency: Annotated[int, Field(ge=1)] = 8

    def drawn(self, part: str) -> tuple[Split, int]:
        """Return the split of a part, and its number of problems."""
        return (Split.HELD_OUT, self.problems) if part == "main" else (Split.HARD, self.hard_problems)
