"""Autoscaler: measure the demand of every autoscaled tier and apply the autoscaling policy to it."""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fly.messages import Load, Role
from orchestration.control.autoscaling_policy import Demand, DemandHistory, decide, explain
from orchestration.control.instances import Instance, Phase
from orchestration.deployment.file import Deployment
from orchestration.deployment.scaling import autoscaled

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AutoscalingStatus:
    """The autoscaling state of a tier.

    Attributes:
        min: Fewest replicas.
        max: Most replicas.
        reason: The latest decision and its reason, in a few words.
    """

    min: int
    max: int
    reason: str


class Autoscaler:
    """One demand history per tier that has autoscaling.

    The histories are not persisted: a restarted controller first observes the load again before it scales.
    """

    def __init__(self) -> None:
        self._histories: dict[Role, DemandHistory | None] = {}

    def update(self, deployment: Deployment, instances: Collection[Instance], now: float) -> dict[Role, int]:
        """Record the present demand; return the new number of replicas of each tier that must change."""
        changed = {}
        for role, (tier, settings) in autoscaled(deployment).items():
            demand = tier_demand([i for i in instances if i.role is role], tier.max_sequences)
            before = self._histories.get(role)
            self._histories[role], number = decide(before, demand, tier.replicas, settings, now)
            if number != tier.replicas:
                logger.info("%s: %d replicas instead of %d: %s", role, number, tier.replicas, demand)
                changed[role] = number
        return changed

    def status(self, deployment: Deployment) -> dict[Role, AutoscalingStatus]:
        """Return the status by tier, as of the latest update."""
        return {
            role: AutoscalingStatus(
                min=settings.min,
                max=settings.max,
                reason=explain(self._histories.get(role), settings),
            )
            for role, (_, settings) in autoscaled(deployment).items()
        }


def tier_demand(instances: Iterable[Instance], max_sequences: int) -> Demand | None:
    """Return the load of a tier's replicas; None while none of them serves, or one has not reported yet.

    Args:
        instances: Instances of the tier. Those that are starting or do not answer count as empty.
        max_sequences: Sequences that one replica can hold.
    """
    by_phase = {phase: [i.load for i in instances if i.phase is phase] for phase in _LOADED_PHASES}
    serving, draining = by_phase[Phase.READY], by_phase[Phase.DRAINING]
    if not serving or not all(load.kv_capacity for load in serving):
        return None
    return Demand(_load(serving, max_sequences), _load(draining, max_sequences))


_LOADED_PHASES = (Phase.READY, Phase.DRAINING)


def _load(loads: Sequence[Load], max_sequences: int) -> float:
    """Return a load in replicas; a queued sequence is assumed to need as much KV memory as an open one."""
    sequences = sum(load.sequences + load.queued for load in loads) / max_sequences
    return max(sequences, sum(map(_kv_share, loads)))


def _kv_share(load: Load) -> float:
    if not load.kv_capacity:
        return 0.0
    return load.kv_used / load.kv_capacity * (1 + load.queued / max(1, load.sequences))
