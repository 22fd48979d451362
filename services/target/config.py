"""Configuration of one target replica, by its engine."""

from typing import Literal, Self

from pydantic import model_validator

from flyserve.core.messages import Role
from services.common.sections import Engines
from services.common.service_config import ServeSection
from services.engine.config import (
    BuiltinSection,
    LlamaCppConfig,
    ModelConfig,
    Sharding,
    Shards,
    VllmConfig,
    VllmSection,
)


class TargetSection(BuiltinSection, Sharding):
    """Size and speed of a target replica, which several processes may share."""


class VllmTargetSection(VllmSection, Shards):
    """Size and speed of a target replica on vLLM, which several processes may share."""


class TargetConfig(TargetSection, ModelConfig, ServeSection):
    """Everything that the process of a target replica is started with."""

    role: Literal[Role.TARGET] = Role.TARGET
    """Tier of the service."""

    @property
    def num_processes(self) -> int:
        return self.shards

    @property
    def sharding(self) -> Sharding | None:
        return self if self.shards > 1 else None

    @model_validator(mode="after")
    def _shares_a_real_model(self) -> Self:
        if self.shards > 1 and self.simulated is not None:
            raise ValueError(f"shards: is {self.shards}, must be 1 for a simulated model")
        return self


class VllmTargetConfig(VllmTargetSection, VllmConfig, ServeSection):
    """Everything that the process of a target replica on vLLM is started with."""

    role: Literal[Role.TARGET] = Role.TARGET
    """Tier of the service."""


class LlamaCppTargetConfig(LlamaCppConfig, ServeSection):
    """Everything that the process of a target replica on llama.cpp is started with."""

    role: Literal[Role.TARGET] = Role.TARGET
    """Tier of the service."""


AnyTargetConfig = TargetConfig | VllmTargetConfig | LlamaCppTargetConfig
TARGETS: Engines[AnyTargetConfig] = Engines(TargetConfig, VllmTargetConfig, LlamaCppTargetConfig)
