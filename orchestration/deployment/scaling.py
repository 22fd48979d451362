"""Number and names of the replicas of each tier. Pure."""

import itertools
from collections.abc import Collection, Mapping

from fly.errors import ConfigError
from fly.messages import Role
from orchestration.control.autoscaling_policy import Autoscaling
from orchestration.control.instances import Instance, Phase
from orchestration.deployment.file import Deployment, ModelTier
from orchestration.deployment.plan import Members, replica_names
from services.common.config import parse


def autoscaled(deployment: Deployment) -> dict[Role, tuple[ModelTier, Autoscaling]]:
    """Return the tiers whose number of replicas follows their load, with their limits."""
    return {
        role: (tier, tier.autoscaling)
        for role, tier in deployment.tiers.items()
        if isinstance(tier, ModelTier) and tier.autoscaling is not None
    }


def with_replicas(deployment: Deployment, replicas: Mapping[Role, int]) -> Deployment:
    """Return the deployment with other numbers of replicas.

    Raises:
        ConfigError: The deployment has no such tier, or a number breaks a limit.
    """
    data = deployment.model_dump(mode="json")
    for role, number in replicas.items():
        if data[role.value] is None:
            raise ConfigError(f"{role.value}: {deployment.name} has no such tier: apply a file that has one")
        data[role.value]["replicas"] = number
    return parse(Deployment, data, "scale")


def keeping_replicas(deployment: Deployment, before: Deployment) -> Deployment:
    """Return the deployment with its autoscaled tiers at their present size, within the new limits.

    So applying a file again does not undo the scaling by load.
    """
    kept = {
        role: settings.within(before.tiers[role].replicas)
        for role, (_, settings) in autoscaled(deployment).items()
        if role in before.tiers
    }
    return with_replicas(deployment, kept) if kept else deployment


def at_its_largest(deployment: Deployment) -> Deployment:
    """Return the deployment with as many replicas as autoscaling may start."""
    return with_replicas(deployment, {role: how.max for role, (_, how) in autoscaled(deployment).items()})


def choose_members(deployment: Deployment, before: Members, instances: Collection[Instance]) -> Members:
    """Return the replicas of each tier: the present ones, plus new ones or minus some.

    Replicas that do not serve are removed first, then those with the least load, the last ones first. A new
    replica gets a name under which nothing runs.
    """
    return {
        role: _resized(role, before.get(role, ()), tier.replicas, [i for i in instances if i.role is role])
        for role, tier in deployment.tiers.items()
    }


def _resized(
    role: Role, before: tuple[str, ...], number: int, instances: Collection[Instance]
) -> tuple[str, ...]:
    if number <= len(before):
        kept = sorted(before, key=lambda name: _keep_priority(name, instances), reverse=True)[:number]
        return tuple(name for name in before if name in kept)
    taken = {*before, *(instance.key.replica for instance in instances)}
    free = (name for name in replica_names(role) if name not in taken)
    return (*before, *itertools.islice(free, number - len(before)))


def _keep_priority(replica: str, instances: Collection[Instance]) -> tuple[bool, int, int]:
    """Return the priority of keeping a replica: whether it serves and stays, then its load."""
    own = [i for i in instances if i.key.replica == replica and i.phase is Phase.READY]
    is_lasting = any(not i.is_marked_for_replacement for i in own)
    return is_lasting, sum(i.load.sequences + i.load.queued for i in own), sum(i.load.kv_used for i in own)
