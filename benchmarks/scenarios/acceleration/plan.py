"""The parts, the ways of drafting, and the models and texts they are compared on."""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from benchmarks.aligned_pair.recipe import PairRecipe, Shape
from benchmarks.harness.client import PLAIN, speculation
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.harness.system import DEMO_MODELS, Flags, model_flags
from fly.request import SpeculationParams
from fly.types import Mode

DEMO, PASSES, PREDICTED = "demo", "second-pass", "predicted"
REPEATING, NON_REPEATING, AHEAD = "repeating", "non-repeating", "draft-ahead"
LOOKUP, ENDLESS, MEMORY = "lookup", "lookup-endless", "memory"
VOCABULARY, REAL_VOCABULARY, FREE = "vocabulary", "real-vocabulary", "free-drafts"
DRAFT_LENGTH, WHOLE_RESPONSE = 15, 512
AGREEMENT = 0.9
"""Probability that the simulated drafter proposes the target's choice."""
TARGET_S, DRAFTER_S, ENDLESS_S = 0.024, 0.003, 0.005
"""Seconds of a simulated forward of any size: a draft of 8 takes as long as a verification."""
RECIPE = PairRecipe(target=Shape(384, 1024, 8, 6, 2), drafter=Shape(256, 704, 1, 4, 2), vocab_size=4096)
PERIOD = 64
FLY = speculation(Mode.FLY, DRAFT_LENGTH)
DEMO_TARGET = ("services.target", *model_flags(DEMO_MODELS / "target", "bfloat16", 16, 16_384))
DEMO_DRAFTER = model_flags(DEMO_MODELS / "drafter", "float32")
LOOKUP_ENGINES = ("ngram", "suffix")
SUB_DRAFTERS = ("off", *LOOKUP_ENGINES)
BASELINE, SUFFIX, OWN = "off", "suffix", "own vocabulary"


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        repeat: Repetitions of every prompt under every setting.
        demo_prompts: Problems that the demo pair answers under every setting of a part.
        aligned_prompts: Prompts that each of the aligned pairs continues under every setting.
        aligned_tokens: New tokens of each.
        passes: Second passes, each compared with a first pass at the same time.
        pass_prompts: Problems of a pass.
        control_prompts: The first of these problems, which are also passed without a sub-drafter.
        predicted_prompts: Problems whose responses are predicted.
        simulated_prompts: Responses of the simulated engines under every setting.
        simulated_tokens: New tokens of each.
        ahead_lengths: Draft lengths; the best one counts, with drafting ahead and without.
        agents, steps: Loops about a problem each, and the requests of a loop.
        at_once, drafters: Concurrent loops, and the drafters that serve them.
        real_tokens: Longest continuation of a beginning of a text by the real pair.
        real_length: Tokens of each of its drafts.
        streams: Numbers of sequences in one verification with masks.
        mask_repeat: Responses of each, with the masks and without.
    """

    repeat: int = 1
    demo_prompts: Annotated[int, Field(ge=2), Quick(4)] = 60
    aligned_prompts: Annotated[int, Quick(2)] = 12
    aligned_tokens: Annotated[int, Quick(64)] = 192
    passes: Annotated[int, Quick(1)] = 7
    pass_prompts: Annotated[int, Quick(4)] = 100
    control_prompts: Annotated[int, Quick(1)] = 20
    predicted_prompts: Annotated[int, Field(ge=2), Quick(2)] = 200
    simulated_prompts: Annotated[int, Quick(2)] = 7
    simulated_tokens: Annotated[int, Quick(64)] = 192
    ahead_lengths: Annotated[tuple[int, ...], Quick((8,))] = (4, 6, 8, 10)
    agents: Annotated[int, Field(ge=2), Quick(4)] = 40
    steps: Annotated[int, Field(ge=2), Quick(2)] = 4
    at_once: Annotated[int, Field(ge=1)] = 4
    drafters: Annotated[int, Field(ge=1), Quick(2)] = 4
    real_tokens: Annotated[int, Quick(16)] = 48
    real_length: int = 7
    streams: Annotated[tuple[int, ...], Quick((8,))] = (1, 8)
    mask_repeat: Annotated[int, Field(ge=1), Quick(2)] = 12


class Setting(NamedTuple):
    """A deployment's way of drafting, by the name of its fleet, and the speculation of its requests."""

    fleet: str
    way: SpeculationParams


def grid(drafter: Flags) -> tuple[dict[str, list[Flags]], dict[str, Setting]]:
    """Return every sub-drafter, also with drafting ahead: fleets, and settings."""
    fleets, settings = dict[str, list[Flags]](), dict[str, Setting]()
    for helper, ahead in product(SUB_DRAFTERS, ("off", "on")):
        name = helper if ahead == "off" else f"{helper} + ahead"
        flags = () if helper == BASELINE else ("--sub-drafter", helper)
        fleets[name] = [("services.drafter", *drafter, "--draft-ahead", ahead, *flags)]
        settings[name] = Setting(name, FLY)
    return fleets, settings


def lookup_settings() -> dict[str, Setting]:
    """Return plain decoding, and every engine that looks tokens up for the target itself."""
    modes = product(LOOKUP_ENGINES, (Mode.EXACT, Mode.FLY))
    return {
        "plain": Setting(LOOKUP_ENGINES[0], PLAIN),
        **{f"{e}, {mode.value}": Setting(e, speculation(mode, DRAFT_LENGTH)) for e, mode in modes},
    }


def ahead_name(length: int, is_ahead: bool) -> str:
    """Return the name of a draft length with drafting ahead, or without."""
    return f"drafts of {length}{', ahead' if is_ahead else ''}"


def mapped(folder: Path, target: Path, dtype: str) -> Flags:
    """Return the command of a drafter whose vocabulary is not that of its target."""
    mapping = ("--vocabulary", "text", "--target-tokenizer", str(target))
    return ("services.drafter", *model_flags(folder, dtype), *mapping)


def real_models() -> tuple[Path, Path]:
    """Return the folders of the real pair of two vocabularies: Gemma 3 270M and SmolLM2-135M."""
    from demo.real.fetch import GEMMA3, SMOLLM2, model_folder

    return model_folder(GEMMA3), model_folder(SMOLLM2)
