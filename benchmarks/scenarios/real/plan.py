"""The amount of measuring, the real models, and the ways of decoding."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, Field

from benchmarks.harness.client import ways_by_mode
from benchmarks.harness.command import BasePlan, Quick
from benchmarks.harness.system import LOOKUP_DRAFTER, Flags, model_flags
from benchmarks.harness.workloads import WORKLOADS
from demo.real.fetch import GEMMA3, SMOLLM2, RealModel, model_folder

DTYPE = "bfloat16"
MODES = ways_by_mode()
"""Ways of decoding, with drafts as long as the deployment's default allows."""


def _of_all_parts(numbers: Mapping[str, int]) -> Mapping[str, int]:
    if set(numbers) != set(WORKLOADS):
        raise ValueError(f"must have a number for each of {', '.join(WORKLOADS)}")
    return numbers


Numbers = Annotated[Mapping[str, Annotated[int, Field(ge=1)]], AfterValidator(_of_all_parts)]


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        repeat: Repetitions of every prompt under every way.
        prompts: Prompts of each part.
        max_new_tokens: Limit of every response.
        agent_tokens: Longest prompt of an agent.
    """

    repeat: Annotated[int, Field(ge=1)] = 1
    prompts: Annotated[Numbers, Quick(dict.fromkeys(WORKLOADS, 2))] = field(
        default_factory=lambda: {"chat": 16, "code": 16, "agents": 12, "reasoning": 48}
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=512), Quick(8)] = 128
    agent_tokens: Annotated[int, Field(ge=1024, le=7168), Quick(1024)] = 3072


@dataclass(frozen=True, slots=True)
class RealPair:
    """A real target, and its drafter: a model of another vocabulary, or None for the engine `suffix`."""

    name: str
    target: RealModel
    drafter: RealModel | None

    @property
    def models(self) -> tuple[RealModel, ...]:
        """The models that must have been fetched."""
        return (self.target,) if self.drafter is None else (self.target, self.drafter)

    def target_command(self, kv_tokens: int) -> Flags:
        """Return the command of a target in one thread."""
        return ("services.target", *model_flags(model_folder(self.target), DTYPE, kv_tokens=kv_tokens))

    def drafter_command(self, kv_tokens: int) -> Flags:
        """Return the command of a drafter in one thread."""
        if self.drafter is None:
            return LOOKUP_DRAFTER
        mapping = ("--vocabulary", "text", "--target-tokenizer", str(model_folder(self.target)))
        model = model_flags(model_folder(self.drafter), DTYPE, kv_tokens=kv_tokens)
        return ("services.drafter", *model, *mapping)


PAIRS = (
    RealPair("SmolLM2-135M-Instruct with suffix", SMOLLM2, None),
    RealPair("Gemma 3 270M with SmolLM2 as its drafter", GEMMA3, SMOLLM2),
)
