"""The amount of measuring, and the ways of drafting that the parts compare."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from benchmarks.harness.client import Prompts, speculation
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.harness.system import DEMO_MODELS, Flags, model_flags
from flyserve.core.request import SpeculationParams
from flyserve.core.types import Mode

DRAFT_LENGTH, WHOLE_RESPONSE = 15, 512
Length = Annotated[int, Field(ge=1)]
FLY = speculation(Mode.FLY, DRAFT_LENGTH)
DEMO_TARGET = ("services.target", *model_flags(DEMO_MODELS / "target", "bfloat16", 16, 16_384))
DEMO_DRAFTER = ("services.drafter", *model_flags(DEMO_MODELS / "drafter", "float32"))
HELPER = "helper-suffix"
"""Name of the sub-drafter in the fleets of `grid`."""


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        repeat: Repetitions of every prompt under every setting.
        demo_prompts: Problems that the demo pair answers under every setting of a part.
        predicted_prompts: Problems whose responses are predicted.
        simulated_prompts: Responses of the simulated engines under every setting.
        simulated_tokens: New tokens of each.
        ahead_lengths: Draft lengths, with drafting ahead and without.
        agents, steps: Loops about a problem each, and the requests of a loop.
        at_once, drafters: Concurrent loops, and the drafters that serve them.
    """

    repeat: Annotated[int, Field(ge=1)] = 1
    demo_prompts: Annotated[int, Field(ge=2), Quick(4)] = 60
    predicted_prompts: Annotated[int, Field(ge=2), Quick(2)] = 200
    simulated_prompts: Annotated[int, Field(ge=2), Quick(2)] = 7
    simulated_tokens: Annotated[int, Field(ge=1), Quick(64)] = 192
    ahead_lengths: Annotated[tuple[Length, ...], Field(min_length=1), Quick((8,))] = (4, 6, 8, 10)
    agents: Annotated[int, Field(ge=2), Quick(4)] = 40
    steps: Annotated[int, Field(ge=2), Quick(2)] = 4
    at_once: Annotated[int, Field(ge=1)] = 4
    drafters: Annotated[int, Field(ge=1), Quick(2)] = 4


class Setting(NamedTuple):
    """A deployment's way of drafting, by the name of its fleet, and the speculation of its requests."""

    fleet: str
    way: SpeculationParams


@dataclass(frozen=True, slots=True)
class Bed:
    """A target, ways of drafting for it, and the prompts on which they are compared.

    Attributes:
        fleets: Commands of the drafters by the name of their fleet, as in `running_fleets`.
        settings: Settings by name; the first one is the baseline.
        target: Command of the target.
        config: Other keys of the fleets' routers.
        repeat: Repetitions of every prompt, each of which is a table of its own.
        is_remembered: The prompts of a setting share one cache salt.
        options: Other parameters of every request.
    """

    fleets: Mapping[str, list[Flags]]
    settings: Mapping[str, Setting]
    prompts: Prompts
    max_new_tokens: int = WHOLE_RESPONSE
    target: Flags = DEMO_TARGET
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    repeat: int = 1
    is_remembered: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


def grid(drafter: Flags) -> tuple[dict[str, list[Flags]], dict[str, Setting]]:
    """Return fleets and settings without the sub-drafter and with it, also with drafting ahead."""
    fleets, settings = dict[str, list[Flags]](), dict[str, Setting]()
    for helper, ahead in product(("off", "suffix"), ("off", "on")):
        name = helper if ahead == "off" else f"{helper} + ahead"
        flags = () if helper == "off" else ("--sub-drafter", HELPER)
        fleets[name] = [(*drafter, "--draft-ahead", ahead, *flags)]
        settings[name] = Setting(name, FLY)
    return fleets, settings


def ahead_name(length: int, is_ahead: bool) -> str:
    """Return the name of a draft length with drafting ahead, or without."""
    return f"drafts of {length}{', ahead' if is_ahead else ''}"
