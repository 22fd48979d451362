"""The tiers of a deployment file: the services' own sections, with replicas, GPUs and nodes."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from orchestration.deployment import reserved
from orchestration.deployment.autoscaling import Autoscaling
from services.common.config import Config, OneOf
from services.common.model_source import ModelPath
from services.drafter.config import DrafterSection, DraftingSection
from services.engine.config import (
    AUTO,
    EngineName,
    EngineSection,
    ModelSection,
    Sharding,
    quantization_fault,
)
from services.engine.vllm_args import MEMORY_ARGUMENTS, config_faults, num_workers
from services.lookup.config import ENGINES, LookupSection, SubDrafterSection
from services.target.config import TargetSection

_HALF = 0.5
"""Fraction of a GPU above which no two requests share one."""

Replicas = Annotated[int, Field(ge=1, le=1024)]


def _fewest(data: dict[str, Any]) -> int:
    """Return the number of replicas that a tier starts with if the file sets none."""
    autoscaling: Autoscaling | None = data.get("autoscaling")
    return 1 if autoscaling is None else max(1, autoscaling.min)


class Tier(Config):
    """Resources of a tier's replicas."""

    reserved: ClassVar[Mapping[str, str]] = reserved.REPLICA

    gpus: float = Field(0.0, ge=0, le=1)
    """GPUs of each process of a replica; 0 computes on the CPU, a fraction shares a GPU."""

    node_resource: str | None = Field(None, min_length=1)
    """Ray resource of the nodes that the replicas may run on; null allows any node."""


class ModelTier(ModelSection, Tier):
    """Model and replicas of a tier that can follow its load."""

    model: ModelPath | None = None
    """Folder of the model; a relative one is searched next to the deployment file, then under the
    application's root. Or `org/name@revision` on the model hub, which every replica fetches."""

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


def _memory_faults(kv_tokens: int | str, gpus: float) -> Iterator[str]:
    """Yield the reason why the builtin engine cannot measure its KV memory."""
    if kv_tokens == AUTO and gpus != 1:
        reason = "would take the memory of the others" if gpus else "measures the memory of a GPU"
        yield f"kv_tokens: is {AUTO}, which {reason}, but gpus is {gpus:g}, must be 1: set a number"


class EngineTier(EngineSection, ModelTier):
    """Tier with a choice of engines."""

    @model_validator(mode="after")
    def _suits_its_engine(self) -> Self:
        faults = [*config_faults(self), *self._gpu_faults()]
        if self.engine == EngineName.BUILTIN:
            faults += _memory_faults(self.kv_tokens, self.gpus)
        if fault := quantization_fault(self, "cuda" if self.gpus else "cpu"):
            faults.append(fault)
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _gpu_faults(self) -> Iterator[str]:
        """Yield the reason why the processes cannot share GPUs as the file says."""
        if self.gpus in (0, 1):
            return
        if self.engine != EngineName.VLLM:
            if self.num_processes > 1 and self.gpus <= _HALF:
                yield (
                    f"gpus: is {self.gpus:g}: must be above {_HALF} for each of {self.num_processes} shards:"
                    " two of them could get the same GPU, which NCCL refuses: use 1, or a fraction above"
                    f" {_HALF} if the GPUs are shared with another tier"
                )
        elif self.num_processes > 1:
            yield f"gpus: is {self.gpus:g}: must be 1 for each of the {self.num_processes} processes of vLLM"
        elif not self.engine_args.keys() & set(MEMORY_ARGUMENTS):
            yield (
                f"gpus: is {self.gpus:g}: vLLM takes almost all memory of a GPU unless"
                f" engine_args.{MEMORY_ARGUMENTS[0]} limits it"
            )

    @property
    def num_processes(self) -> int:
        """Processes that compute one replica, each with `threads` and `gpus` of its own."""
        if self.engine == EngineName.VLLM:
            return num_workers(self)
        return self.shards if isinstance(self, Sharding) else 1

    @property
    def num_actors(self) -> int:
        """Ray actors of one replica: one for each process, or one in which vLLM starts its processes."""
        return 1 if self.engine == EngineName.VLLM else self.num_processes


class TargetTier(TargetSection, EngineTier):
    """The targets, which verify."""

    model: ModelPath
    """Folder of the model; a relative one is searched next to the deployment file, then under the
    application's root. Or `org/name@revision` on the model hub, which every replica fetches."""


class DrafterTier(DrafterSection, LookupSection, EngineTier):
    """The drafters: with a model, or by look-up without one."""

    engine: Annotated[str, OneOf((*(name.value for name in EngineName), *ENGINES))] = EngineName.BUILTIN.value
    """`builtin` and `vllm` run a model; `vllm` needs the extra of that name. Without a model, `ngram` looks
    tokens up in the sequence itself, and `suffix` also in earlier responses of the deployment."""

    model: ModelPath | None = None
    """Folder or hub id of the model, searched as that of the target; engines that look tokens up have none.
    The keys of a model, such as `kv_tokens`, have no effect with them."""

    @model_validator(mode="after")
    def _has_what_its_engine_needs(self) -> Self:
        if self.looks_up and self.model is not None:
            raise ValueError(f"model: is {self.model}, but engine {self.engine} runs no model: leave it out")
        if self.looks_up and self.gpus:
            raise ValueError(f"gpus: is {self.gpus:g}, but engine {self.engine} uses none: leave it out")
        if not self.looks_up and self.model is None:
            raise ValueError(
                f"model: is required with engine {self.engine}; engines without a model: {', '.join(ENGINES)}"
            )
        return self

    @property
    def looks_up(self) -> bool:
        """True if the engine looks tokens up and runs no model."""
        return self.engine in ENGINES


class SubDrafterTier(SubDrafterSection, DraftingSection, Tier):
    """The sub-drafters, which help the drafters."""

    reserved: ClassVar[Mapping[str, str]] = reserved.SUB_DRAFTER

    engine: Annotated[str, OneOf((*ENGINES, "model", "none"))] = "ngram"
    """`ngram` looks tokens up in the sequence itself; `suffix` also in earlier responses of the deployment;
    `model` runs a tiny language model; `none` leaves the tier out."""

    model: ModelPath | None = None
    """Folder or hub id of the model of engine `model`, searched as those of the other tiers. The keys of a
    model, such as `kv_tokens`, have an effect only with this engine."""

    replicas: Replicas = 1
    """Replicas that the controller starts."""

    @model_validator(mode="after")
    def _has_its_model(self) -> Self:
        if (self.engine == "model") != (self.model is not None):
            raise ValueError("model: is the folder of engine model, must be given with it and only with it")
        if self.engine == "model" and (faults := [*_memory_faults(self.kv_tokens, self.gpus)]):
            raise ValueError("; ".join(faults))
        return self
