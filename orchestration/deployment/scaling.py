"""How many replicas each tier of a deployment has, and which ones they are. Pure."""

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
    """The tiers whose number of replicas follows their load, and how."""
    return {
        role: (tier, tier.autoscaling)
        for role, tier in deployment.tiers.items()
        if isinstance(tier, ModelTier) and tier.autoscaling is not None
    }


def with_replicas(deployment: Deployment, replicas: Mapping[Role, int]) -> Deployment:
    """The same deployment with other numbers of replicas.

    Raises:
        ConfigError: It has no such tier, or a number breaks a limit.
    """
    data = deployment.model_dump(mode="json")
    for role, number in replicas.items():
        if data[role.value] is None:
            raise ConfigError(f"{role.value}: {deployment.name} has no such tier: apply a file that has one")
        data[role.value]["replicas"] = number
    return parse(Deployment, data, "scale")


def keeping_replicas(deployment: Deployment, before: Deployment) -> Deployment:
    """The same deployment, whose autoscaled tiers have as many replicas as before, or as the limits allow.

    So applying a file again does not undo what the load has asked for.
    """
    kept = {
        role: settings.within(before.tiers[role].replicas)
        for role, (_, settings) in autoscaled(deployment).items()
        if role in before.tiers
    }
    return with_replicas(deployment, kept) if kept else deployment


def at_its_largest(deployment: Deployment) -> Deployment:
    """The same deployment with as many replicas as autoscaling may come to."""
    return with_replicas(deployment, {role: how.max for role, (_, how) in autoscaled(deployment).items()})


def choose_members(deployment: Deployment, before: Members, instances: Collection[Instance]) -> Members:
    """The replicas that make up each tier: those from before, with new ones or without some.

    Of too many go those that do not serve, then those that carry the least, the last ones first. A new one
    has a name under which nothing runs.
    """
    return {
        role: _resized(role, before.get(role, ()), tier.replicas, [i for i in instances if i.role is role])
        for role, tier in deployment.tiers.items()
    }


def _resized(
    role: Role, before: tuple[str, ...], number: int, instances: Collection[Instance]
) -> tuple[str, ...]:
    if number <= len(before):
        kept = sorted(before, key=lambda name: _worth(name, instances), reverse=True)[:number]
        return tuple(name for name in before if name in kept)
    taken = {*before, *(instance.key.replica for instance in instances)}
    free = (name for name in replica_names(role) if name not in taken)
    return (*before, *itertools.islice(free, number - len(before)))


def _worth(replica: str, instances: Collection[Instance]) -> tuple[bool, int, int]:
    """What would be lost with it; more is more."""
    own = [i for i in instances if i.key.replica == replica and i.phase is Phase.READY]
    is_lasting = any(not i.is_marked_for_replacement for i in own)
    return is_lasting, sum(i.load.sequences + i.load.queued for i in own), sum(i.load.kv_used for i in own)
