"""The plan: which replicas a deployment consists of. Pure; nothing is started here."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fly.messages import Role
from orchestration.deployment.file import (
    METRICS_OFFSETS,
    METRICS_PORTS_PER_TIER,
    Deployment,
    ModelTier,
    SubDrafterTier,
    TargetTier,
)
from orchestration.deployment.security import service_security
from services.common.security.config import PublicSecurityConfig
from services.common.telemetry.config import TelemetryConfig

ACTORS: Mapping[Role, str] = {
    Role.TARGET: "services.target.actor:TargetActor",
    Role.DRAFTER: "services.drafter.actor:DrafterActor",
    Role.SUB_DRAFTER: "services.sub_drafter.actor:SubDrafterActor",
}
"""Class of each tier's actor as `module:name`: named here, imported where it runs."""

MODEL_SUB_DRAFTER = "services.drafter.actor:ModelSubDrafterActor"
"""Class of a sub-drafter's actor that runs a model."""

Members = Mapping[Role, tuple[str, ...]]
"""Names of the replicas that make up each tier."""

_LIGHT_CPUS = 0.5
_ROUTER_CPUS = 1.0
_MARK = 0.001
"""Of a resource that only marks nodes; Ray takes no less."""


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One replica that should run.

    Attributes:
        role: Its tier.
        replica: Its name, such as `target-0`; stable over restarts.
        actor: Its actor's class as `module:name`.
        num_cpus: Logical CPUs that each of its actors asks for; never 0, or its node could be scaled away.
        config: What its actor is constructed with.
        shards: Actors that share it, all on one node: a leader, which serves, and its followers.
        hints: What its actor is told besides; another value is no reason to replace a running one.
        num_gpus: GPUs that each of its actors asks for; a fraction shares one.
        node_resource: Ray resource of the nodes that it may run on; None takes any.
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
        """What each of its actors asks for, as Ray names it."""
        asked = {"CPU": self.num_cpus}
        if self.num_gpus:
            asked["GPU"] = self.num_gpus
        if self.node_resource is not None:
            asked[self.node_resource] = _MARK
        return asked


def plan(
    deployment: Deployment, registry: str, actors: Mapping[Role, str] = ACTORS, members: Members | None = None
) -> tuple[ReplicaSpec, ...]:
    """The replicas of a deployment, helpers first: who needs another finds it there.

    Args:
        deployment: With absolute model folders.
        registry: host:port of the registry, where drafters find their sub-drafters.
        actors: Class of each tier's actor.
        members: As many as the deployment has replicas; absent, they are numbered from 0.
    """
    names = members or first_members(deployment)
    sub_drafters = _sub_drafters(deployment, actors[Role.SUB_DRAFTER], names)
    targets = _targets(deployment.target, actors[Role.TARGET], names)
    others = total_cpus((*sub_drafters, *targets)) + _ROUTER_CPUS
    helper = registry if sub_drafters else None
    drafters = _drafters(deployment, actors[Role.DRAFTER], names, helper, others)
    specs = (*sub_drafters, *drafters, *targets)
    return tuple(_completed(spec, deployment) for spec in specs)


def _completed(spec: ReplicaSpec, deployment: Deployment) -> ReplicaSpec:
    """The same replica, told what the whole deployment says of it."""
    within = _within_ports(spec, deployment.service_ports)
    return _told(_secured(within, deployment.security), deployment)


def _secured(spec: ReplicaSpec, security: PublicSecurityConfig) -> ReplicaSpec:
    """The same replica, told how to protect itself, if anything was said."""
    own = service_security(security, spec.role)
    return replace(spec, config={**spec.config, "security": own}) if own else spec


def replica_names(role: Role) -> Iterator[str]:
    """`target-0`, `target-1` and so on."""
    return (f"{role}-{index}" for index in itertools.count())


def first_members(deployment: Deployment) -> Members:
    """Of every tier as many as it has, numbered from 0."""
    return {
        role: tuple(itertools.islice(replica_names(role), tier.replicas))
        for role, tier in deployment.tiers.items()
    }


def _within_ports(spec: ReplicaSpec, ports: str | None) -> ReplicaSpec:
    """The same replica, told the ports that it may listen at."""
    return spec if ports is None else replace(spec, hints={**spec.hints, "ports": ports})


def _told(spec: ReplicaSpec, deployment: Deployment) -> ReplicaSpec:
    """The same replica, told what to tell of itself, where that is not the default.

    Where a network opens only some ports, a replica's metrics are at the first free one of its tier: with one
    replica on a node, always at the same.
    """
    telemetry = deployment.telemetry
    if telemetry == TelemetryConfig():
        return spec
    index = int(spec.replica.rpartition("-")[2])
    own: dict[str, Any] = {"replica": spec.replica, "waits_for_port": True}
    if deployment.service_ports is None:
        own["metrics_port"] = metrics_port(telemetry, spec.role, index)
    else:
        own["metrics_port"] = metrics_port(telemetry, spec.role, 0)
        own["metrics_ports"] = METRICS_PORTS_PER_TIER
    return replace(spec, config={**spec.config, "telemetry": {**telemetry.model_dump(), **own}})


def metrics_port(telemetry: TelemetryConfig, role: Role, index: int) -> int | None:
    """Where a replica tells its metrics.

    It depends on nothing but the replica's name, so that no other replica is restarted when a tier is
    scaled. Replicas of a tier whose numbers differ by a multiple of 100 share a port: on one machine there
    is room for 100.
    """
    if not telemetry.metrics_port:
        return telemetry.metrics_port
    return telemetry.metrics_port + METRICS_OFFSETS[role] + index % METRICS_PORTS_PER_TIER


def total_cpus(specs: Iterable[ReplicaSpec]) -> float:
    """Logical CPUs that the replicas ask for together."""
    return sum(spec.total_cpus for spec in specs)


def _targets(tier: TargetTier, actor: str, names: Members) -> tuple[ReplicaSpec, ...]:
    shared = {
        "shards": tier.shards,
        "group_timeout_s": tier.group_timeout_s,
        "group_start_timeout_s": tier.group_start_timeout_s,
    }
    more = shared if tier.shards > 1 else {}
    replicas = _replicas(Role.TARGET, tier, actor, names, more)
    return tuple(replace(replica, shards=tier.shards) for replica in replicas)


def _sub_drafters(deployment: Deployment, actor: str, names: Members) -> tuple[ReplicaSpec, ...]:
    tier = deployment.sub_drafter
    if tier is None or tier.engine == "none" or deployment.drafter is None:
        return ()
    if tier.engine == "model":
        return _model_sub_drafters(tier, names)
    config = {"engine": tier.engine, "response_cache_tokens": tier.response_cache_tokens}
    return tuple(
        ReplicaSpec(Role.SUB_DRAFTER, name, actor, _LIGHT_CPUS, config, node_resource=tier.node_resource)
        for name in names[Role.SUB_DRAFTER]
    )


def _model_sub_drafters(tier: SubDrafterTier, names: Members) -> tuple[ReplicaSpec, ...]:
    """Replicas of the drafter's own servicer, with nobody to help them."""
    assert tier.model is not None
    models = ModelTier(
        model=tier.model,
        replicas=tier.replicas,
        dtype=tier.dtype,
        threads=tier.threads,
        gpus=tier.gpus,
        node_resource=tier.node_resource,
    )
    more = {"role": Role.SUB_DRAFTER.value, "draft_ahead": "off"}
    return _replicas(Role.SUB_DRAFTER, models, MODEL_SUB_DRAFTER, names, more)


def _drafters(
    deployment: Deployment, actor: str, names: Members, registry: str | None, other_cpus: float
) -> tuple[ReplicaSpec, ...]:
    """The drafters, told where sub-drafters are listed, and how many CPUs everything asks for together."""
    tier = deployment.drafter
    if tier is None:
        return ()
    more: dict[str, Any] = {"draft_ahead": tier.draft_ahead}
    if registry is not None:
        more["registry"] = registry
    hints = {"declared_cpus": other_cpus + tier.replicas * tier.threads}
    return tuple(replace(spec, hints=hints) for spec in _replicas(Role.DRAFTER, tier, actor, names, more))


def _replicas(
    role: Role, tier: ModelTier, actor: str, names: Members, more: Mapping[str, Any]
) -> tuple[ReplicaSpec, ...]:
    config = {
        "model": str(tier.model),
        "dtype": tier.dtype.value,
        "max_sequences": tier.max_sequences,
        "kv_tokens": tier.kv_tokens,
        "threads": tier.threads,
        **({"device": "cuda"} if tier.gpus else {}),
        **more,
    }
    return tuple(
        ReplicaSpec(
            role,
            name,
            actor,
            float(tier.threads),
            config,
            num_gpus=tier.gpus,
            node_resource=tier.node_resource,
        )
        for name in names[role]
    )
