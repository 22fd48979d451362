"""Configuration of one target replica."""

from dataclasses import replace
from typing import Self

from pydantic import Field, model_validator

from fly.messages import Role
from services.engine.config import EngineConfig
from services.engine.settings import ModelSettings
from services.engine.sharding.settings import Sharding


class TargetConfig(ModelSettings):
    """What a target replica serves and where it listens.

    Attributes:
        shards: Processes that share the model, each with `threads` of its own.
        group_timeout_s: Within which each of them takes part in what all do; else the replica ends.
        group_start_timeout_s: Within which all of them have started, and then have loaded their parts.
    """

    shards: int = Field(1, ge=1, le=64)
    group_timeout_s: float = Field(60.0, gt=0)
    group_start_timeout_s: float = Field(600.0, gt=0)

    @model_validator(mode="after")
    def _shares_a_real_model(self) -> Self:
        if self.shards > 1 and self.simulated is not None:
            raise ValueError(f"shards: is {self.shards}, must be 1 for a simulated model")
        return self

    def engine_config(self, role: Role) -> EngineConfig:
        config = super().engine_config(role)
        if self.shards == 1:
            return config
        sharding = Sharding(self.shards, self.group_timeout_s, self.group_start_timeout_s)
        return replace(config, sharding=sharding)
