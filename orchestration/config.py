"""The deployment file: what to serve, with how many replicas of each tier."""

from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from fly.errors import ConfigError
from router.config import SpeculationConfig
from services.common.config import Config, load_yaml

APPLICATION_ROOT = Path(__file__).resolve().parent.parent


class Dtype(StrEnum):
    """Compute type of a model."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class ModelTier(Config):
    """A tier that runs a model.

    Attributes:
        model: The model's folder; a relative one is looked up beside the deployment file, then under the
            application's root.
        replicas: Started by the controller.
        dtype: Compute type.
        max_sequences: Sequences that one replica holds at once.
        kv_tokens: KV cache positions of one replica.
        threads: CPU threads of one replica.
    """

    model: Path
    replicas: int = Field(1, ge=1, le=1024)
    dtype: Dtype = Dtype.BFLOAT16
    max_sequences: int = Field(64, ge=1)
    kv_tokens: int = Field(65_536, ge=1)
    threads: int = Field(1, ge=1)


class TargetTier(ModelTier):
    """The target's replicas.

    Attributes:
        shards: Processes that share one replica; only 1 is served so far.
    """

    shards: int = 1

    @field_validator("shards")
    @classmethod
    def _one_shard(cls, shards: int) -> int:
        if shards != 1:
            raise ValueError("sharded replicas are not served yet, must be 1")
        return shards


class DrafterTier(ModelTier):
    """The drafter's replicas."""


class SubDrafterTier(Config):
    """The sub-drafter's replicas.

    Attributes:
        engine: `ngram` looks tokens up in the sequence itself; `none` leaves the tier out.
        replicas: Started by the controller.
    """

    engine: Literal["ngram", "none"] = "ngram"
    replicas: int = Field(1, ge=1, le=1024)


class RouterTier(Config):
    """The router.

    Attributes:
        host: Interface that the public service listens on; loopback unless told otherwise.
        grpc_port: Of the public service; 0 takes a free one.
        balancing: How replicas are picked.
        max_concurrent: Requests in work at once.
        max_queued: Requests that may wait; further ones are refused.
    """

    host: str = "127.0.0.1"
    grpc_port: int = Field(50_051, ge=0, le=65_535)
    balancing: Literal["least_load", "round_robin"] = "least_load"
    max_concurrent: int = Field(256, ge=1)
    max_queued: int = Field(1024, ge=0)


class Deployment(Config):
    """A whole deployment.

    Attributes:
        target: Always there.
        drafter: Without one the router decodes plainly.
        sub_drafter: Without one the drafter drafts alone.
    """

    target: TargetTier
    drafter: DrafterTier | None = None
    sub_drafter: SubDrafterTier | None = None
    router: RouterTier = RouterTier()
    speculation: SpeculationConfig = SpeculationConfig()


def load_deployment(path: Path) -> Deployment:
    """Reads a deployment file; its model folders become absolute.

    Raises:
        ConfigError: The file is missing, breaks a limit, or names a model folder that does not exist.
    """
    deployment = load_yaml(Deployment, path)
    tiers: dict[str, Any] = {"target": deployment.target, "drafter": deployment.drafter}
    located = {name: _located(tier, name, path) for name, tier in tiers.items() if tier is not None}
    return deployment.model_copy(update=located)


def _located(tier: ModelTier, name: str, path: Path) -> ModelTier:
    for base in (path.resolve().parent, APPLICATION_ROOT):
        if (folder := base / tier.model.expanduser()).is_dir():
            return tier.model_copy(update={"model": folder.resolve()})
    raise ConfigError(
        f"{path}: {name}.model: no folder {tier.model}"
        f" (looked beside the deployment file and under {APPLICATION_ROOT})"
    )
