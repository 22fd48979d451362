"""The plan: which replicas a deployment consists of. Pure; nothing is started here."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flyserve.core.messages import Role
from orchestration.deployment.file import METRICS_OFFSETS, METRICS_PORTS_PER_TIER, Deployment
from orchestration.deployment.security import router_security, security_of
from orchestration.deployment.tiers import ModelTier, NoSubDrafter, SuffixDrafter, Tier
from router.config import RouterSection
from router.speculation_config import SpeculationConfig
from services.common.config import changed_values
from services.common.sections import Engines, engine_of
from services.common.security.identity import certificate_name
from services.common.telemetry.config import TelemetrySection
from services.drafter.config import DRAFTERS
from services.lookup.config import SuffixConfig
from services.target.config import TARGETS

ACTORS: Mapping[Role, str] = {
    Role.TARGET: "services.target.actor:TargetActor",
    Role.DRAFTER: "services.drafter.actor:DrafterActor",
    Role.SUB_DRAFTER: "services.lookup.actor:SubDrafterActor",
}
"""Class of each tier's actor as `module:name`: named here, imported where it runs."""

LOOKUP_DRAFTER = "services.lookup.actor:LookupDrafterActor"
"""Class of a drafter's actor that looks tokens up."""

Members = Mapping[Role, tuple[str, ...]]
"""Names of the replicas that make up each tier."""

_ROUTER_CPUS = 1.0
_MARK = 0.001
"""Amount of a resource that only marks nodes; the least that Ray accepts."""


@dataclass(frozen=True, slots=True)
class Requests:
    """Actors of a replica, and the resources that each of them requests."""

    num_cpus: float
    num_gpus: float
    num_actors: int = 1


_LIGHT = Requests(num_cpus=0.5, num_gpus=0.0)
"""Requests of a replica that looks tokens up."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """A replica that should run.

    Attributes:
        role: Tier of the replica.
        replica: Name, such as `target-0`; stable over restarts.
        actor: Class of its actor as `module:name`.
        num_cpus: Logical CPUs that each of its actors requests; never 0, or its node could be scaled away.
        config: Configuration that its actor is constructed with.
        shards: Actors that share it, all on one node: a leader, which serves, and its followers. One for
            vLLM, which starts the other processes itself.
        hints: Further keys of the configuration; a running replica is not replaced when they change.
        num_gpus: GPUs that each of its actors requests; a fraction shares one.
        node_resource: Ray resource of the nodes that it may run on; None allows any.
    """

    role: Role
    replica: str
    actor: str
    num_cpus: float
    config: Mapping[str, Any]
    shards: int = 1
    hints: Mapping[str, Any] = field(default_factory=dict, compare=False)
    num_gpus: float = 0.0
    node_resource: str | None = None

    @property
    def total_cpus(self) -> float:
        """Logical CPUs of all its actors."""
        return self.num_cpus * self.shards

    @property
    def resources(self) -> Mapping[str, float]:
        """Resources that each of its actors requests, by Ray's names."""
        asked = {"CPU": self.num_cpus}
        if self.num_gpus:
            asked["GPU"] = self.num_gpus
        if self.node_resource is not None:
            asked[self.node_resource] = _MARK
        return asked


def plan(
    deployment: Deployment, registry: str, actors: Mapping[Role, str] = ACTORS, members: Members | None = None
) -> tuple[ReplicaSpec, ...]:
    """Return the replicas of a deployment, sub-drafters first: drafters then find them already started.

    The model folders must be absolute. `members` has as many names as the deployment has replicas; absent,
    they are numbered from 0. Drafters find their sub-drafters at `registry`, host:port.
    """
    replicas = partial(_replicas, deployment, members or first_members(deployment))
    target, drafter = deployment.target, deployment.drafter
    targets = replicas(Role.TARGET, actors[Role.TARGET], _requests(target), _model_config(target, TARGETS))
    if drafter is None:
        return targets
    if isinstance(drafter, SuffixDrafter):
        own = drafter.model_dump(mode="json", include={"max_draft", "max_sequences"})
        config = {"role": Role.DRAFTER.value, **own, **changed_values(drafter, SuffixConfig)}
        return (*replicas(Role.DRAFTER, LOOKUP_DRAFTER, _LIGHT, config), *targets)
    sub_drafters: tuple[ReplicaSpec, ...] = ()
    config = _model_config(drafter, DRAFTERS)
    if drafter.vocabulary != "same":
        config["target_tokenizer"] = str(target.model)
    if (tier := deployment.sub_drafter) is not None and not isinstance(tier, NoSubDrafter):
        own = changed_values(tier, SuffixConfig)
        sub_drafters = replicas(Role.SUB_DRAFTER, actors[Role.SUB_DRAFTER], _LIGHT, own)
        config["registry"] = registry
    drafters = replicas(Role.DRAFTER, actors[Role.DRAFTER], _requests(drafter), config)
    cpus = {"declared_cpus": total_cpus((*sub_drafters, *drafters, *targets)) + _ROUTER_CPUS}
    drafters = tuple(replace(spec, hints={**spec.hints, **cpus}) for spec in drafters)
    return (*sub_drafters, *drafters, *targets)


def router_config(
    deployment: Deployment, registry: str, start_timeout_s: float, grace_s: float, name: str = "router-0"
) -> dict[str, Any]:
    """Return the configuration of a router of this deployment, as plain data.

    `name` is its name in metrics, traces and logs. It waits `start_timeout_s` for the first target, and
    running requests have `grace_s` to finish when it is stopped. The model folders must be absolute;
    `registry` is host:port.
    """
    return {
        **changed_values(deployment.router, RouterSection),
        "model": str(deployment.target.model),
        "registry": registry,
        "start_timeout_s": start_timeout_s,
        "scales_to_zero": deployment.scales_to_zero,
        "has_drafter": deployment.drafter is not None,
        "grace_s": grace_s,
        "speculation": changed_values(deployment.speculation, SpeculationConfig),
        "security": router_security(deployment.security),
        "telemetry": {
            **changed_values(deployment.telemetry, TelemetrySection),
            "replica": name,
            "deployment": deployment.name,
        },
    }


def replica_names(role: Role) -> Iterator[str]:
    """Yield `target-0`, `target-1` and so on."""
    return (f"{role}-{index}" for index in itertools.count())


def first_members(deployment: Deployment) -> Members:
    """Return the names of the replicas of each tier, numbered from 0."""
    return {
        role: tuple(itertools.islice(replica_names(role), tier.replicas))
        for role, tier in deployment.tiers.items()
    }


def metrics_port(telemetry: TelemetrySection, role: Role, index: int) -> int | None:
    """Return the port of a replica's metrics.

    It depends on nothing but the replica's name, so that no other replica is restarted when a tier is
    scaled. Replicas of a tier whose numbers differ by a multiple of 100 share a port: one machine has room
    for 100.
    """
    if not telemetry.metrics_port:
        return telemetry.metrics_port
    return telemetry.metrics_port + METRICS_OFFSETS[role] + index % METRICS_PORTS_PER_TIER


def total_cpus(specs: Iterable[ReplicaSpec]) -> float:
    """Return the logical CPUs that the replicas request together."""
    return sum(spec.total_cpus for spec in specs)


def _requests(tier: ModelTier) -> Requests:
    """Return the requests of a tier with a model: an actor requests what all of its processes need."""
    processes = tier.num_processes // tier.num_actors
    return Requests(float(tier.declared_threads * processes), tier.num_gpus * processes, tier.num_actors)


def _model_config(tier: ModelTier, services: Engines[Any]) -> dict[str, Any]:
    """Return the device and the changed values of a tier, by the keys of its service."""
    return {**_values(tier, services), **({"device": "cuda"} if tier.num_gpus else {})}


def _values(tier: Tier, services: Engines[Any]) -> dict[str, Any]:
    """Return the changed values of a tier, its engine included, by the keys of its service, as plain data."""
    engine = engine_of(type(tier))
    named = {} if engine == services.names[0] else {"engine": engine}
    return {**named, **changed_values(tier, services.named(engine))}


def _replicas(
    deployment: Deployment,
    members: Members,
    role: Role,
    actor: str,
    requests: Requests,
    config: Mapping[str, Any],
) -> tuple[ReplicaSpec, ...]:
    """Return the replicas of a tier, each with its own telemetry and the deployment's security and ports."""
    tier = deployment.tiers[role]
    own = security_of(deployment.security, certificate_name(role))
    security = {"security": own} if own else {}
    ports = {} if deployment.service_ports is None else {"ports": deployment.service_ports}
    return tuple(
        ReplicaSpec(
            role=role,
            replica=name,
            actor=actor,
            num_cpus=requests.num_cpus,
            config={**config, **security, **_telemetry(deployment, role, name)},
            shards=requests.num_actors,
            hints=ports,
            num_gpus=requests.num_gpus,
            node_resource=tier.node_resource,
        )
        for name in members[role]
    )


def _telemetry(deployment: Deployment, role: Role, replica: str) -> dict[str, Any]:
    """Return the section `telemetry` of a replica; nothing if the deployment leaves it at the defaults.

    If a network opens only some ports, a replica's metrics are at the first free port of its tier: always
    the same one if a node has one replica.
    """
    telemetry = deployment.telemetry
    own = changed_values(telemetry, TelemetrySection)
    if not own:
        return {}
    own |= {"replica": replica, "deployment": deployment.name, "waits_for_port": True}
    index = 0
    if deployment.service_ports is None:
        index = int(replica.rpartition("-")[2])
    else:
        own["metrics_ports"] = METRICS_PORTS_PER_TIER
    own["metrics_port"] = metrics_port(telemetry, role, index)
    return {"telemetry": own}
