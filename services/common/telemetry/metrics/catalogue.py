"""Every metric that there is, and which processes tell it."""

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from fly.messages import Load, Role
from services.common.telemetry.metrics.engine import DrafterMetrics, TargetMetrics
from services.common.telemetry.metrics.families import Families, Family
from services.common.telemetry.metrics.router import RouterMetrics
from services.common.telemetry.metrics.sub_drafter import SubDrafterMetrics

ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Told:
    """A metric and who tells it.

    Attributes:
        roles: In the order in which a request passes them.
    """

    family: Family
    roles: tuple[str, ...]


def catalogue() -> tuple[Told, ...]:
    """All of them, each once, in the order of their first role."""
    families: dict[str, Family] = {}
    roles: dict[str, list[str]] = {}
    for role, declared in _declared().items():
        for family in declared:
            known = families.setdefault(family.name, family)
            assert known == family, f"{family.name} means one thing at one role, another at {role}"
            roles.setdefault(family.name, []).append(role)
    return tuple(Told(family, tuple(roles[name])) for name, family in families.items())


def _declared() -> Mapping[str, list[Family]]:
    router, target, drafter, sub_drafter = (Families(CollectorRegistry()) for _ in range(4))
    RouterMetrics(router)
    TargetMetrics(target, Load)
    DrafterMetrics(drafter, Role.DRAFTER, Load)
    SubDrafterMetrics(sub_drafter, Load)
    return {
        ROUTER: router.declared,
        Role.TARGET.value: target.declared,
        Role.DRAFTER.value: drafter.declared,
        Role.SUB_DRAFTER.value: sub_drafter.declared,
    }
