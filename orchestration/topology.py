"""The plan: which replicas a deployment consists of. Pure; nothing is started here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fly.messages import Role
from orchestration.config import Deployment, ModelTier, TargetTier

ACTORS: Mapping[Role, str] = {
    Role.TARGET: "services.target.actor:TargetActor",
    Role.DRAFTER: "services.drafter.actor:DrafterActor",
    Role.SUB_DRAFTER: "services.sub_drafter.actor:SubDrafterActor",
}
"""Class of each tier's actor as `module:name`: named here, imported where it runs."""

_LIGHT_CPUS = 0.5
_ADDRESS = "127.0.0.1:0"


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
    """

    role: Role
    replica: str
    actor: str
    num_cpus: float
    config: Mapping[str, Any]
    shards: int = 1


def plan(
    deployment: Deployment, registry: str, actors: Mapping[Role, str] = ACTORS
) -> tuple[ReplicaSpec, ...]:
    """The replicas of a deployment, helpers first: who needs another finds it there.

    Args:
        deployment: With absolute model folders.
        registry: host:port of the registry, where drafters find their sub-drafters.
        actors: Class of each tier's actor.
    """
    return (
        *_sub_drafters(deployment, actors[Role.SUB_DRAFTER]),
        *_drafters(deployment, actors[Role.DRAFTER], registry),
        *_targets(deployment.target, actors[Role.TARGET]),
    )


def total_cpus(specs: Iterable[ReplicaSpec]) -> float:
    """Logical CPUs that the replicas ask for together."""
    return sum(spec.num_cpus * spec.shards for spec in specs)


def _targets(tier: TargetTier, actor: str) -> tuple[ReplicaSpec, ...]:
    shared = {
        "shards": tier.shards,
        "group_timeout_s": tier.group_timeout_s,
        "group_start_timeout_s": tier.group_start_timeout_s,
    }
    replicas = _replicas(Role.TARGET, tier, actor, shared if tier.shards > 1 else {})
    return tuple(replace(replica, shards=tier.shards) for replica in replicas)


def _sub_drafters(deployment: Deployment, actor: str) -> tuple[ReplicaSpec, ...]:
    tier = deployment.sub_drafter
    if tier is None or tier.engine == "none" or deployment.drafter is None:
        return ()
    config = {"engine": tier.engine, "address": _ADDRESS}
    return tuple(
        ReplicaSpec(Role.SUB_DRAFTER, f"{Role.SUB_DRAFTER}-{index}", actor, _LIGHT_CPUS, config)
        for index in range(tier.replicas)
    )


def _drafters(deployment: Deployment, actor: str, registry: str) -> tuple[ReplicaSpec, ...]:
    if deployment.drafter is None:
        return ()
    helped = bool(_sub_drafters(deployment, actor))
    return _replicas(Role.DRAFTER, deployment.drafter, actor, {"registry": registry} if helped else {})


def _replicas(role: Role, tier: ModelTier, actor: str, more: Mapping[str, Any]) -> tuple[ReplicaSpec, ...]:
    config = {
        "model": str(tier.model),
        "dtype": tier.dtype.value,
        "max_sequences": tier.max_sequences,
        "kv_tokens": tier.kv_tokens,
        "threads": tier.threads,
        "address": _ADDRESS,
        **more,
    }
    return tuple(
        ReplicaSpec(role, f"{role}-{index}", actor, float(tier.threads), config)
        for index in range(tier.replicas)
    )
