"""The settings: the rules side by side, on problems as in training and on harder ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from benchmarks.harness.client import PLAIN, speculation
from benchmarks.harness.command import BasePlan, Quick
from demo.corpus import Split
from flyserve.core.types import Mode, TailPolicy

DRAFT_LENGTH = 15
BASELINE = "plain"
CARRY = speculation(Mode.FLY, DRAFT_LENGTH, preset="flyserve")
RULES = {
    BASELINE: PLAIN,
    "exact": speculation(Mode.EXACT, DRAFT_LENGTH),
    "official": replace(CARRY, preset="official"),
    "vllm": replace(CARRY, preset="vllm"),
    "paper": replace(CARRY, preset="paper"),
    "flyserve, carry": CARRY,
    "flyserve, reject": replace(CARRY, tail=TailPolicy.REJECT),
    "flyserve, gap at most 0.45": replace(CARRY, max_logprob_gap=0.45),
}
"""Ways of decoding by name, in the order of the tables."""


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


@dataclass(frozen=True, slots=True)
class Group:
    """Problems that are answered under every rule."""

    name: str
    title: str
    split: Split
    num_problems: int


def make_groups(plan: Plan, only: Sequence[str] = ()) -> list[Group]:
    """Return every group, or the named ones."""
    groups = [
        Group("main", "The rules side by side", Split.HELD_OUT, plan.problems),
        Group("hard", "Problems harder than trained on", Split.HARD, plan.hard_problems),
    ]
    return [group for group in groups if not only or group.name in only]
