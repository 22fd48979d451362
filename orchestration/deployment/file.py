"""The deployment file: what to serve, with how many replicas of each tier."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fly.errors import ConfigError
from fly.messages import Role
from orchestration.control.autoscaling_policy import Autoscaling
from orchestration.deployment.security import located as located_security
from router.config import SpeculationConfig
from router.policies import POLICIES
from services.common.config import AutoSwitch, Config, OneOf, load_yaml
from services.common.model_source import is_hub_id
from services.common.security.config import PublicSecurityConfig
from services.common.telemetry.config import TelemetryConfig
from services.sub_drafter.engines import ENGINES

APPLICATION_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_NAME = "default"
_LOOKED = f"looked beside the deployment file and under {APPLICATION_ROOT}"

METRICS_OFFSETS = {Role.TARGET: 100, Role.DRAFTER: 200, Role.SUB_DRAFTER: 300}
"""Where the ports of a tier's metrics begin, from the router's on; each tier has a hundred."""

METRICS_PORTS_PER_TIER = 100
LAST_METRICS_OFFSET = max(METRICS_OFFSETS.values()) + METRICS_PORTS_PER_TIER - 1


class Dtype(StrEnum):
    """Compute type of a model."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def _fewest(data: dict[str, Any]) -> int:
    """Replicas that a tier starts with, of which nothing else is said."""
    autoscaling: Autoscaling | None = data.get("autoscaling")
    return 1 if autoscaling is None else autoscaling.min


class ModelTier(Config):
    """A tier that runs a model.

    Attributes:
        model: The model's folder; a relative one is looked up beside the deployment file, then under the
            application's root. Or `org/name@revision` on the model hub, which every replica fetches.
        autoscaling: Lets the number of replicas follow the load; without it, it stays as it is.
        replicas: Started by the controller; with autoscaling, at first: its `min` where nothing else is said.
        dtype: Compute type.
        max_sequences: Sequences that one replica holds at once.
        kv_tokens: KV cache positions of one replica.
        threads: CPU threads of one replica.
        gpus: Of each of its processes; 0 computes on the CPU, a fraction shares a GPU.
        node_resource: Ray resource that marks the nodes it may run on; None takes any node.
    """

    model: Path
    autoscaling: Autoscaling | None = None
    replicas: int = Field(default_factory=_fewest, ge=1, le=1024)
    dtype: Dtype = Dtype.BFLOAT16
    max_sequences: int = Field(64, ge=1)
    kv_tokens: int = Field(65_536, ge=1)
    threads: int = Field(1, ge=1)
    gpus: float = Field(0.0, ge=0, le=1)
    node_resource: str | None = Field(None, min_length=1)

    @field_validator("replicas")
    @classmethod
    def _is_within_limits(cls, value: int, info: ValidationInfo) -> int:
        limits: Autoscaling | None = info.data.get("autoscaling")
        if limits is not None and value != limits.within(value):
            raise ValueError(
                f"must be within autoscaling.min {limits.min} and autoscaling.max {limits.max};"
                " to go beyond, apply a file with other limits"
            )
        return value


class TargetTier(ModelTier):
    """The target's replicas.

    Attributes:
        shards: Processes that share one replica, all on one node, each with `threads` of its own. Must divide
            the model's attention heads, KV heads and MLP width.
        group_timeout_s: Within which every process of a shared replica takes part in what all do; a replica
            that has lost one is restarted as a whole.
        group_start_timeout_s: Within which all of them have started, and then have loaded their parts.
    """

    shards: int = Field(1, ge=1, le=64)
    group_timeout_s: float = Field(60.0, gt=0)
    group_start_timeout_s: float = Field(600.0, gt=0)


class DrafterTier(ModelTier):
    """The drafter's replicas.

    Attributes:
        draft_ahead: Go on drafting while the target verifies; `auto` does where the CPUs of a drafter's
            machine are enough for the whole deployment, and else while fewer sequences are open than CPUs.
    """

    draft_ahead: AutoSwitch = "auto"


class SubDrafterTier(Config):
    """The sub-drafter's replicas.

    Attributes:
        engine: `ngram` looks tokens up in the sequence itself; `suffix` also in what the deployment has
            generated; `model` runs a tiny language model; `none` leaves the tier out.
        replicas: Started by the controller.
        response_cache_tokens: Tokens of finished responses that one replica of `suffix` remembers.
        model: Folder of the model of `model`, looked up as those of the other tiers.
        dtype: Compute type of the model.
        threads: CPU threads of one replica of `model`.
        gpus: As for the other tiers, of one replica of `model`.
        node_resource: As for the other tiers.
    """

    engine: Annotated[str, OneOf((*ENGINES, "model", "none"))] = "ngram"
    replicas: int = Field(1, ge=1, le=1024)
    response_cache_tokens: int = Field(10_000_000, ge=1024, le=1 << 31)
    model: Path | None = None
    dtype: Dtype = Dtype.BFLOAT16
    threads: int = Field(1, ge=1)
    gpus: float = Field(0.0, ge=0, le=1)
    node_resource: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _has_its_model(self) -> Self:
        if (self.engine == "model") != (self.model is not None):
            raise ValueError("model: is the folder of engine model, must be given with it and only with it")
        return self


class RouterTier(Config):
    """The router.

    Attributes:
        host: Interface that the public service listens on; loopback unless told otherwise.
        grpc_port: Of the public service; 0 takes a free one.
        http_port: Of its OpenAI-compatible face; 0 takes a free one, without it there is no such face.
        model_name: What HTTP requests call the model; the name of the target's folder where it is absent.
        chat_template: Jinja file that takes the place of the target's own chat template, looked up as models.
        cors_origins: Pages of these origins may call the HTTP face from a browser; `*` is any.
        balancing: How replicas are picked.
        max_concurrent: Requests in work at once.
        max_queued: Requests that may wait; further ones are rejected.
    """

    host: str = "127.0.0.1"
    grpc_port: int = Field(50_051, ge=0, le=65_535)
    http_port: int | None = Field(None, ge=0, le=65_535)
    model_name: str | None = Field(None, min_length=1, max_length=256)
    chat_template: Path | None = None
    cors_origins: tuple[str, ...] = ()
    balancing: Annotated[str, OneOf(POLICIES)] = "prefix_affinity"
    max_concurrent: int = Field(256, ge=1)
    max_queued: int = Field(1024, ge=0)


class RolloutConfig(Config):
    """How replicas are replaced and let go.

    Attributes:
        surge: Instances of a tier that may run beside those that they replace; 0 ends a replica before its
            successor starts: for machines that have no room for both.
        drain_s: Seconds that running streams may go on in a replica that is let go.
    """

    surge: int = Field(1, ge=0, le=64)
    drain_s: float = Field(300.0, ge=0, le=86_400)


class ControllerConfig(Config):
    """Where the controller's registry is found.

    Attributes:
        port: Of the registry; 0 takes a free one, which the controller keeps over its own restarts.
        advertised_host: Name or address under which routers and drafters reach it, where that is not the
            address of Ray's head node: a name that follows the head.
    """

    port: int = Field(0, ge=0, le=65_535)
    advertised_host: str | None = Field(None, min_length=1)


class Deployment(Config):
    """A whole deployment.

    Attributes:
        name: By which commands find it; one Ray cluster may run several deployments.
        target: Always there.
        drafter: Without one the router decodes plainly.
        sub_drafter: Without one the drafter drafts alone.
        security: How every process protects what it serves; `{role}` in a path of `tls` stands for `target`,
            `drafter`, `sub-drafter`, `router` or `controller`. `health_port` is the router's.
        telemetry: What every process tells of itself; `metrics_port` is the router's, see `topology`.
        service_ports: First and last port of the services on every node, such as 50100-50199; each takes the
            first that is free. None takes any free ones.
    """

    name: str = Field(DEFAULT_NAME, pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
    target: TargetTier
    drafter: DrafterTier | None = None
    sub_drafter: SubDrafterTier | None = None
    router: RouterTier = RouterTier()
    speculation: SpeculationConfig = SpeculationConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    rollout: RolloutConfig = RolloutConfig()
    controller: ControllerConfig = ControllerConfig()
    security: PublicSecurityConfig = PublicSecurityConfig()
    service_ports: str | None = Field(None, pattern=r"^[1-9]\d{0,4}-[1-9]\d{0,4}$")

    @field_validator("telemetry")
    @classmethod
    def _leaves_ports_for_all(cls, telemetry: TelemetryConfig) -> TelemetryConfig:
        most = 65_535 - LAST_METRICS_OFFSET
        if telemetry.metrics_port is not None and telemetry.metrics_port > most:
            raise ValueError(
                f"metrics_port is {telemetry.metrics_port}, at most {most}: the tiers' ports follow"
            )
        return telemetry

    @property
    def tiers(self) -> dict[Role, ModelTier | SubDrafterTier]:
        """Those that it has."""
        tiers = {Role.TARGET: self.target, Role.DRAFTER: self.drafter, Role.SUB_DRAFTER: self.sub_drafter}
        return {role: tier for role, tier in tiers.items() if tier is not None}


def load_deployment(path: Path) -> Deployment:
    """Reads a deployment file; its model folders, its chat template and its keys become absolute.

    Raises:
        ConfigError: The file is missing, breaks a limit, or names a folder or file that does not exist.
    """
    deployment = load_yaml(Deployment, path)
    located: dict[str, Config] = {
        role.value: tier.model_copy(update={"model": _located(tier.model, role.value, path)})
        for role, tier in deployment.tiers.items()
        if tier.model is not None
    }
    if (template := deployment.router.chat_template) is not None:
        found = {"chat_template": _located_template(template, path)}
        located["router"] = deployment.router.model_copy(update=found)
    located["security"] = located_security(deployment.security, path.resolve().parent)
    return deployment.model_copy(update=located)


def _located(model: Path, name: str, path: Path) -> Path:
    for folder in _candidates(model, path):
        if folder.is_dir():
            return folder.resolve()
    if is_hub_id(model):
        return model
    raise ConfigError(
        f"{path}: {name}.model: no folder {model} ({_LOOKED});"
        " a model of the hub is written org/name@revision"
    )


def _located_template(template: Path, path: Path) -> Path:
    for file in _candidates(template, path):
        if file.is_file():
            return file.resolve()
    raise ConfigError(f"{path}: router.chat_template: no file {template} ({_LOOKED})")


def _candidates(name: Path, path: Path) -> tuple[Path, ...]:
    return tuple(base / name.expanduser() for base in (path.resolve().parent, APPLICATION_ROOT))
