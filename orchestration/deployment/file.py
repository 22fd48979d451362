"""The deployment file: its tiers and its other sections, and the places of what it names."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, field_validator, model_validator

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.deployment import reserved
from orchestration.deployment.security import located as located_security
from orchestration.deployment.tiers import (
    DrafterTier,
    ModelTier,
    NoSubDrafter,
    ScaledTier,
    SubDrafter,
    SubDrafterTier,
    SuffixDrafter,
    TargetTier,
)
from router.config import RouterSection
from router.speculation_config import SpeculationConfig
from services.common.addresses import shared_port_fault
from services.common.config import Config, load_yaml
from services.common.gguf.header import is_gguf
from services.common.home import expanded
from services.common.model_source import is_hub_id
from services.common.security.config import PublicSecurityConfig
from services.common.telemetry.config import TelemetrySection

APPLICATION_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_NAME = "default"
_SEARCHED = f"searched next to the deployment file and under {APPLICATION_ROOT}"

METRICS_OFFSETS = {Role.TARGET: 100, Role.DRAFTER: 200, Role.SUB_DRAFTER: 300}
"""First port of each tier's metrics, counted from the router's; each tier has a hundred."""

METRICS_PORTS_PER_TIER = 100
LAST_METRICS_OFFSET = max(METRICS_OFFSETS.values()) + METRICS_PORTS_PER_TIER - 1


class RouterTier(RouterSection):
    """The routers, which serve the public API."""

    reserved: ClassVar[Mapping[str, str]] = reserved.ROUTER


class DeploymentTelemetry(TelemetrySection):
    """Metrics, traces and logs of every process."""

    reserved: ClassVar[Mapping[str, str]] = reserved.TELEMETRY


class RolloutConfig(Config):
    """Replacement and removal of replicas."""

    surge: int = Field(1, ge=0, le=64)
    """Instances of a tier that may run in addition to those that they replace. 0 ends a replica before its
    successor starts, for machines without room for both; the default where a machine's GPUs hold no more."""

    drain_s: float = Field(300.0, ge=0, le=86_400)
    """Time in seconds that running streams have to finish in a replica or router that is removed."""


class ControllerConfig(Config):
    """Address of the controller's registry."""

    port: int = Field(0, ge=0, le=65_535)
    """Port of the registry; 0 takes a free one, which the controller keeps over its own restarts."""

    advertised_host: str | None = Field(None, min_length=1)
    """Name or address under which routers and drafters reach the registry, if that is not the address of
    Ray's head node: a name that follows the head."""


class Deployment(Config):
    """A whole deployment."""

    name: str = Field(DEFAULT_NAME, pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")
    """Name by which commands find the deployment; one Ray cluster may run several."""

    target: TargetTier
    """The targets, which verify."""

    drafter: DrafterTier | None = None
    """The drafters; null: the router decodes plainly."""

    sub_drafter: SubDrafterTier | None = None
    """The sub-drafters, which help drafters that run a model; null: the drafters draft alone."""

    router: RouterTier = RouterTier()
    """The routers, which serve the public API."""

    speculation: SpeculationConfig = SpeculationConfig()
    """Speculation of a request that does not set its own."""

    telemetry: DeploymentTelemetry = DeploymentTelemetry()
    """Metrics, traces and logs of every process."""

    rollout: RolloutConfig = RolloutConfig()
    """Replacement and removal of replicas."""

    controller: ControllerConfig = ControllerConfig()
    """Address of the controller's registry."""

    security: PublicSecurityConfig = PublicSecurityConfig()
    """TLS and API keys of every process; `{role}` in a path of `tls` stands for `target`, `drafter`,
    `sub-drafter`, `router` or `controller`. `health_port` and the API keys are the router's."""

    service_ports: str | None = Field(None, pattern=r"^[1-9]\d{0,4}-[1-9]\d{0,4}$")
    """First and last port of the services on every node, such as 50100-50199; each service takes the first
    free one. null takes any free ports."""

    @field_validator("telemetry")
    @classmethod
    def _leaves_ports_for_all(cls, telemetry: DeploymentTelemetry) -> DeploymentTelemetry:
        most = 65_535 - LAST_METRICS_OFFSET
        if telemetry.metrics_port is not None and telemetry.metrics_port > most:
            raise ValueError(
                f"metrics_port is {telemetry.metrics_port}, at most {most}: the tiers' ports follow"
            )
        return telemetry

    @property
    def router_ports(self) -> dict[str, int | None]:
        """The ports of a router, by their keys."""
        return {
            "router.grpc_port": self.router.grpc_port,
            "router.http_port": self.router.http_port,
            "security.health_port": self.security.health_port,
            "telemetry.metrics_port": self.telemetry.metrics_port,
        }

    @model_validator(mode="after")
    def _has_a_port_for_each(self) -> Self:
        if fault := shared_port_fault(self.router_ports):
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _drafts_within_limits(self) -> Self:
        self.router.require_draft_length(self.speculation)
        return self

    @model_validator(mode="after")
    def _waits_for_what_scales_to_zero(self) -> Self:
        if self.drafter is not None and self.drafter.autoscaling and not self.drafter.autoscaling.min:
            raise ValueError("drafter.autoscaling.min: is 0, must be at least 1: none waits for a drafter")
        if self.scales_to_zero and "replica_wait_s" not in self.router.model_fields_set:
            raise ValueError(
                "target.autoscaling.min: is 0, but router.replica_wait_s is not set: set it to the seconds"
                " that a target needs to start, such as 300; requests wait for so long"
            )
        return self

    @property
    def scales_to_zero(self) -> bool:
        """True if an idle deployment may have no target."""
        return self.target.autoscaling is not None and not self.target.autoscaling.min

    @model_validator(mode="after")
    def _has_a_drafter_to_help(self) -> Self:
        drafter, helper = self.drafter, self.sub_drafter
        if drafter is None or helper is None or isinstance(helper, NoSubDrafter):
            return self
        if isinstance(drafter, SuffixDrafter):
            raise ValueError(
                f"sub_drafter: has the engine {helper.engine}, but drafter.engine is {drafter.engine}, which"
                " uses no sub-drafter: leave sub_drafter out, or set drafter.engine: builtin"
            )
        return self

    @property
    def tiers(self) -> dict[Role, ScaledTier | SubDrafter]:
        """The tiers that the deployment has."""
        tiers: dict[Role, ScaledTier | SubDrafter | None] = {
            Role.TARGET: self.target,
            Role.DRAFTER: self.drafter,
            Role.SUB_DRAFTER: self.sub_drafter,
        }
        return {role: tier for role, tier in tiers.items() if tier is not None}


def load_deployment(path: Path, has_models: bool = True) -> Deployment:
    """Read a deployment file; the paths of models, chat template, certificates and keys become absolute.

    Args:
        path: The file.
        has_models: Whether this machine has the models; if not, absolute paths are not checked.

    Raises:
        ConfigError: The file is missing, breaks a limit, or names a folder or file that does not exist.
    """
    return located_deployment(load_yaml(Deployment, path), path, has_models)


def located_deployment(deployment: Deployment, path: Path, has_models: bool = True) -> Deployment:
    """Return the deployment with absolute paths; relative ones are searched next to the file `path`.

    Without models on this machine, absolute paths of models and of the chat template are not checked.

    Raises:
        ConfigError: A folder or file does not exist.
    """

    def is_elsewhere(given: Path) -> bool:
        return not has_models and given.is_absolute()

    located: dict[str, Config] = {
        role.value: tier.model_copy(update={"model": _located(tier.model, role.value, path)})
        for role, tier in deployment.tiers.items()
        if isinstance(tier, ModelTier) and not is_elsewhere(tier.model)
    }
    template = deployment.router.chat_template
    if template is not None and not is_elsewhere(template):
        found = {"chat_template": _located_template(template, path)}
        located["router"] = deployment.router.model_copy(update=found)
    located["security"] = located_security(deployment.security, path.resolve().parent)
    return deployment.model_copy(update=located)


def with_router_ports(deployment: Deployment, grpc_port: int | None, http_port: int | None) -> Deployment:
    """Return the deployment with other ports of its routers; None keeps a port.

    Raises:
        ConfigError: Two keys have the same port.
    """
    given = {"grpc_port": grpc_port, "http_port": http_port}
    ports = {name: port for name, port in given.items() if port is not None}
    changed = deployment.model_copy(update={"router": deployment.router.model_copy(update=ports)})
    if fault := shared_port_fault(changed.router_ports):
        raise ConfigError(fault)
    return changed


def _located(model: Path, name: str, path: Path) -> Path:
    for folder in _candidates(model, path):
        if folder.is_dir() or (is_gguf(folder) and folder.is_file()):
            return folder.resolve()
    if is_hub_id(model):
        return model
    raise ConfigError(
        f"{path}: {name}.model: no {'file' if is_gguf(model) else 'folder'} {model} ({_SEARCHED});"
        " a model of the hub is written org/name@revision, a GGUF file of it org/name@revision/FILE"
    )


def _located_template(template: Path, path: Path) -> Path:
    for file in _candidates(template, path):
        if file.is_file():
            return file.resolve()
    raise ConfigError(f"{path}: router.chat_template: no file {template} ({_SEARCHED})")


def _candidates(name: Path, path: Path) -> tuple[Path, ...]:
    return tuple(base / expanded(name) for base in (path.resolve().parent, APPLICATION_ROOT))
