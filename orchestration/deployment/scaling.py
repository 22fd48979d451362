"""The number of replicas of each tier. Pure."""

from collections.abc import Mapping

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from orchestration.deployment.autoscaling import Autoscaling
from orchestration.deployment.file import Deployment
from orchestration.deployment.tiers import ScaledTier
from services.common.config import parse


def autoscaled(deployment: Deployment) -> dict[Role, tuple[ScaledTier, Autoscaling]]:
    """Return the tiers whose number of replicas follows their load, with their limits."""
    return {
        role: (tier, tier.autoscaling)
        for role, tier in deployment.tiers.items()
        if isinstance(tier, ScaledTier) and tier.autoscaling is not None
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


def replicas_of(deployment: Deployment) -> dict[Role, int]:
    """Return the number of replicas of each tier."""
    return {role: tier.replicas for role, tier in deployment.tiers.items()}


def keeping_replicas(
    deployment: Deployment, before: Deployment, in_file: Mapping[Role, int] | None = None
) -> Deployment:
    """Return the deployment with the present size of each tier whose number in the file has not changed.

    An autoscaled tier always keeps its size, within its new limits, and a tier that is no longer autoscaled
    gets the number of the file. So applying a file again undoes neither
    the scaling by load nor that by `flyserve scale`. `in_file` has the numbers of the file that was applied
    before.
    """
    limits, known = autoscaled(deployment), before.tiers.keys() & deployment.tiers.keys()
    kept = {role: limits[role][1].within(before.tiers[role].replicas) for role in known & limits.keys()}
    for role in known - limits.keys() - autoscaled(before).keys():
        if (in_file or {}).get(role) == deployment.tiers[role].replicas:
            kept[role] = before.tiers[role].replicas
    return with_replicas(deployment, kept) if kept else deployment


def at_its_largest(deployment: Deployment) -> Deployment:
    """Return the deployment with as many replicas as autoscaling may start."""
    return with_replicas(deployment, {role: how.max for role, (_, how) in autoscaled(deployment).items()})
