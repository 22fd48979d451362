"""Configuration of one target replica."""

from typing import Literal, Self

from pydantic import model_validator

from fly.messages import Role
from services.common.service_config import ServeSection
from services.engine.config import EngineSection, ModelConfig, ModelSection, Sharding


class TargetSection(EngineSection, ModelSection, Sharding):
    """Size and speed of a target replica, which several processes may share."""


class TargetConfig(TargetSection, ModelConfig, ServeSection):
    """Everything that the process of a target replica is started with."""

    role: Literal[Role.TARGET] = Role.TARGET
    """Tier of the service."""

    @property
    def sharding(self) -> Sharding | None:
        return self if self.shards > 1 else None

    @model_validator(mode="after")
    def _shares_a_real_model(self) -> Self:
        if self.shards > 1 and self.simulated is not None:
            raise ValueError(f"shards: is {self.shards}, must be 1 for a simulated model")
        return self
