"""The deployment file: the services' own sections, and the replicas, GPUs and nodes of each tier."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fly.errors import ConfigError
from fly.messages import Role
from orchestration.deployment import reserved
from orchestration.deployment.autoscaling import Autoscaling
from orchestration.deployment.security import located as located_security
from router.config import RouterSection
from router.speculation_config import SpeculationConfig
from services.common.config import Config, OneOf, load_yaml
from services.common.model_source import ModelPath, is_hub_id
from services.common.security.config import PublicSecurityConfig
from services.common.telemetry.config import TelemetrySection
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
from services.sub_drafter.config import LookupSection, SubDrafterSection
from services.sub_drafter.engines import ENGINES
from services.target.config import TargetSection

APPLICATION_ROOT = Path(__file__).resolve().parents[2]
DEFAULT_NAME = "default"
_SEARCHED = f"searched next to the deployment file and under {APPLICATION_ROOT}"

METRICS_OFFSETS = {Role.TARGET: 100, Role.DRAFTER: 200, Role.SUB_DRAFTER: 300}
"""First port of each tier's metrics, counted from the router's; each tier has a hundred."""

METRICS_PORTS_PER_TIER = 100
LAST_METRICS_OFFSET = max(METRICS_OFFSETS.values()) + METRICS_PORTS_PER_TIER - 1

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
    successor starts, for machines without room for both."""

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
        if drafter is None or helper is None or helper.engine == "none":
            return self
        if drafter.looks_up or drafter.engine == EngineName.VLLM:
            raise ValueError(
                f"sub_drafter: has the engine {helper.engine}, but drafter.engine is {drafter.engine}, which"
                " uses no sub-drafter: leave sub_drafter out, or set drafter.engine: builtin"
            )
        return self

    @property
    def tiers(self) -> dict[Role, ModelTier | SubDrafterTier]:
        """The tiers that the deployment has."""
        tiers = {Role.TARGET: self.target, Role.DRAFTER: self.drafter, Role.SUB_DRAFTER: self.sub_drafter}
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
        if tier.model is not None and not is_elsewhere(tier.model)
    }
    template = deployment.router.chat_template
    if template is not None and not is_elsewhere(template):
        found = {"chat_template": _located_template(template, path)}
        located["router"] = deployment.router.model_copy(update=found)
    located["security"] = located_security(deployment.security, path.resolve().parent)
    return deployment.model_copy(update=located)


def with_router_ports(deployment: Deployment, grpc_port: int | None, http_port: int | None) -> Deployment:
    """Return the deployment with other ports of its routers; None keeps a port."""
    given = {"grpc_port": grpc_port, "http_port": http_port}
    ports = {name: port for name, port in given.items() if port is not None}
    return deployment.model_copy(update={"router": deployment.router.model_copy(update=ports)})


def _located(model: Path, name: str, path: Path) -> Path:
    for folder in _candidates(model, path):
        if folder.is_dir():
            return folder.resolve()
    if is_hub_id(model):
        return model
    raise ConfigError(
        f"{path}: {name}.model: no folder {model} ({_SEARCHED});"
        " a model of the hub is written org/name@revision"
    )


def _located_template(template: Path, path: Path) -> Path:
    for file in _candidates(template, path):
        if file.is_file():
            return file.resolve()
    raise ConfigError(f"{path}: router.chat_template: no file {template} ({_SEARCHED})")


def _candidates(name: Path, path: Path) -> tuple[Path, ...]:
    return tuple(base / name.expanduser() for base in (path.resolve().parent, APPLICATION_ROOT))
