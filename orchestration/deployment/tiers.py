"""The tiers of a deployment file: a section of its service for each engine, with replicas, GPUs and nodes."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from orchestration.deployment import reserved
from orchestration.deployment.autoscaling import Autoscaling
from services.common.config import Config
from services.common.model_source import ModelPath, file_fault
from services.common.sections import Engines, engine_of
from services.drafter.config import DrafterSection, DraftLimit, LlamaCppDrafterSection, VllmDrafterSection
from services.engine.config import (
    AUTO,
    BuiltinSection,
    LlamaCppSection,
    ModelSection,
    OrAuto,
    Places,
    VllmSection,
    quantization_fault,
)
from services.engine.vllm_args import MEMORY_ARGUMENTS, config_faults
from services.lookup.config import SuffixDraftSection, SuffixSection
from services.target.config import TargetSection, VllmTargetSection

_HALF = 0.5
"""Fraction of a GPU above which no two requests share one."""


def _fewest(data: dict[str, Any]) -> int:
    """Return the number of replicas that a tier starts with if the file sets none."""
    autoscaling: Autoscaling | None = data.get("autoscaling")
    return 1 if autoscaling is None else max(1, autoscaling.min)


class Tier(Config):
    """Placement of a tier's replicas."""

    reserved: ClassVar[Mapping[str, str]] = reserved.REPLICA

    node_resource: str | None = Field(None, min_length=1)
    """Ray resource of the nodes that the replicas may run on; null allows any node."""


class ScaledTier(Places, Tier):
    """Replicas of a tier that can follow its load."""

    autoscaling: Autoscaling | None = None
    """Lets the number of replicas follow the load; null keeps it as it is."""

    replicas: int = Field(default_factory=_fewest, ge=0, le=1024)
    """Replicas that the controller starts; with autoscaling the number at first, by default
    `autoscaling.min`, or 1 if that is 0."""

    @field_validator("replicas")
    @classmethod
    def _is_within_limits(cls, value: int, info: ValidationInfo) -> int:
        limits: Autoscaling | None = info.data.get("autoscaling")
        if limits is None and value < 1:
            raise ValueError("must be at least 1; an idle target can be stopped by autoscaling.min: 0")
        if limits is not None and value != limits.within(value):
            raise ValueError(
                f"must be within autoscaling.min {limits.min} and autoscaling.max {limits.max};"
                " to go beyond, apply a file with other limits"
            )
        return value


class ModelTier(ModelSection, ScaledTier):
    """Model and GPUs of a tier, on any engine."""

    model: ModelPath
    """Folder of the model, or its GGUF file; a relative one is searched next to the deployment file, then
    under the application's root. Or `org/name@revision` on the model hub, and
    `/FILE` after it for a GGUF file, which every replica fetches."""

    gpus: Annotated[float | Literal["auto"], OrAuto(0, 1, is_whole=False)] = 0.0
    """GPUs of each process of a replica; 0 computes on the CPU, a fraction shares a GPU. `auto`: with
    `flyserve up` all GPUs of the machine, shared by the tiers; with `flyserve apply` 1 on a cluster that has
    GPUs."""

    @property
    def num_gpus(self) -> float:
        """GPUs of each process; `auto` counts as none until a machine has decided."""
        return 0.0 if self.gpus == AUTO else self.gpus

    @property
    def declared_threads(self) -> int:
        """CPUs that each process requests; `auto` without a limit takes what its machine has."""
        return self.max_threads or 1 if self.threads == AUTO else self.threads

    @model_validator(mode="after")
    def _suits_its_engine(self) -> Self:
        if fault := file_fault(self.model, engine_of(type(self))):
            raise ValueError(fault)
        if self.gpus == AUTO:  # checked once the machine has decided
            return self
        if faults := list(self._faults()):
            raise ValueError("; ".join(faults))
        return self

    def _faults(self) -> Iterator[str]:
        """Yield each key whose value does not fit the others."""
        raise NotImplementedError

    @property
    def num_processes(self) -> int:
        """Processes that compute one replica, each with `threads` and `gpus` of its own."""
        raise NotImplementedError

    @property
    def num_actors(self) -> int:
        """Ray actors of one replica."""
        return self.num_processes


class BuiltinTier(BuiltinSection, ModelTier):
    """Tier of the builtin engine."""

    @property
    def num_processes(self) -> int:
        return self.shards if isinstance(self, TargetSection) else 1

    def _faults(self) -> Iterator[str]:
        if fault := quantization_fault(self, "cuda" if self.num_gpus else "cpu"):
            yield fault
        if self.kv_tokens == AUTO and self.num_gpus != 1:
            whose = "would take the memory of the others"
            reason = whose if self.num_gpus else "measures the memory of a GPU"
            found = f"is {AUTO}, which {reason}, but gpus is {self.num_gpus:g}"
            yield f"kv_tokens: {found}, must be 1: set a number"
        if self.num_processes > 1 and 0 < self.num_gpus <= _HALF:
            yield (
                f"gpus: is {self.num_gpus:g}: must be above {_HALF} for each of {self.num_processes} shards:"
                " two of them could get the same GPU, which NCCL rejects: use 1, or a fraction above"
                f" {_HALF} if the GPUs are shared with another tier"
            )


class VllmTier(VllmSection, ModelTier):
    """Tier of vLLM."""

    @property
    def num_actors(self) -> int:
        """One, in which vLLM starts its processes."""
        return 1

    def _faults(self) -> Iterator[str]:
        yield from config_faults(self)
        if self.num_gpus in (0, 1):
            return
        if self.num_processes > 1:
            limit = f"must be 1 for each of the {self.num_processes} processes of vLLM"
            yield f"gpus: is {self.num_gpus:g}: {limit}"
        elif not self.engine_args.keys() & set(MEMORY_ARGUMENTS):
            yield (
                f"gpus: is {self.num_gpus:g}: vLLM takes almost all memory of a GPU unless"
                f" engine_args.{MEMORY_ARGUMENTS[0]} limits it"
            )


class LlamaCppTier(LlamaCppSection, ModelTier):
    """Tier of llama.cpp."""

    @property
    def num_processes(self) -> int:
        return 1

    def _faults(self) -> Iterator[str]:
        if self.num_gpus:
            yield f"gpus: is {self.num_gpus:g}, must be 0: llama.cpp takes the devices of its build"


class BuiltinTarget(TargetSection, BuiltinTier):
    """Targets on the builtin engine."""


class VllmTarget(VllmTargetSection, VllmTier):
    """Targets on vLLM."""


class LlamaCppTarget(LlamaCppTier):
    """Targets on llama.cpp."""


class BuiltinDrafter(DrafterSection, BuiltinTier):
    """Drafters on the builtin engine."""

    engine: Literal["builtin"] = "builtin"
    """`builtin`, `vllm` and `llamacpp` (a GGUF file) run a model; the last two need the extra of their name.
    Without a model, `suffix` looks tokens up in the sequence and in earlier responses of the deployment."""


class VllmDrafter(VllmDrafterSection, VllmTier):
    """Drafters on vLLM."""


class LlamaCppDrafter(LlamaCppDrafterSection, LlamaCppTier):
    """Drafters on llama.cpp."""


class SuffixDrafter(SuffixDraftSection, DraftLimit, ScaledTier):
    """Drafters that look tokens up and run no model."""


class SubDrafter(Tier):
    """Sub-drafters, which help the drafters."""

    reserved: ClassVar[Mapping[str, str]] = reserved.SUB_DRAFTER

    replicas: int = Field(1, ge=1, le=1024)
    """Replicas that the controller starts."""


class SuffixSubDrafter(SuffixSection, SubDrafter):
    """Sub-drafters that look tokens up in earlier responses of the deployment."""

    engine: Literal["suffix"] = "suffix"
    """`suffix` looks tokens up in the sequence and in earlier responses of the deployment; `none` leaves the
    tier out."""


class NoSubDrafter(SubDrafter):
    """A tier that is left out."""

    engine: Literal["none"] = "none"
    """Leaves the tier out."""


TargetTier = Annotated[
    BuiltinTarget | VllmTarget | LlamaCppTarget, Engines(BuiltinTarget, VllmTarget, LlamaCppTarget)
]
DrafterTier = Annotated[
    BuiltinDrafter | VllmDrafter | LlamaCppDrafter | SuffixDrafter,
    Engines(BuiltinDrafter, VllmDrafter, LlamaCppDrafter, SuffixDrafter),
]
SubDrafterTier = Annotated[SuffixSubDrafter | NoSubDrafter, Engines(SuffixSubDrafter, NoSubDrafter)]
