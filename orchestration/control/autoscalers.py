"""Looks at what the tiers carry, and says how many replicas each should have."""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fly.messages import Load, Role
from orchestration.control.autoscaling import Demand, Evidence, decide, explain
from orchestration.control.instances import Instance, Phase
from orchestration.deployment.file import Deployment
from orchestration.deployment.scaling import autoscaled

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AutoscalingStatus:
    """How a tier is scaled.

    Attributes:
        min: Fewest replicas.
        max: Most replicas.
        why: What is decided and for what reason, in a few words.
    """

    min: int
    max: int
    why: str


class Autoscalers:
    """One per tier that has autoscaling.

    What they have seen is not written down: a restarted controller changes nothing before it has seen enough.
    """

    def __init__(self) -> None:
        self._evidence: dict[Role, Evidence | None] = {}

    def look(self, deployment: Deployment, instances: Collection[Instance], now: float) -> dict[Role, int]:
        """The tiers that should have another number of replicas from now on."""
        changed = {}
        for role, (tier, settings) in autoscaled(deployment).items():
            demand = tier_demand([i for i in instances if i.role is role], tier.max_sequences)
            before = self._evidence.get(role)
            self._evidence[role], number = decide(before, demand, tier.replicas, settings, now)
            if number != tier.replicas:
                logger.info("%s: %d replicas instead of %d: %s", role, number, tier.replicas, demand)
                changed[role] = number
        return changed

    def status(self, deployment: Deployment) -> dict[Role, AutoscalingStatus]:
        """By tier, as of the latest look."""
        return {
            role: AutoscalingStatus(settings.min, settings.max, explain(self._evidence.get(role), settings))
            for role, (_, settings) in autoscaled(deployment).items()
        }


def tier_demand(instances: Iterable[Instance], max_sequences: int) -> Demand | None:
    """What the replicas of a tier carry; None while none of them serves, or one has not said its load.

    Args:
        instances: Of the tier. Those that are starting, or do not answer, carry nothing for certain.
        max_sequences: That a replica holds.
    """
    by_phase = {phase: [i.load for i in instances if i.phase is phase] for phase in _CARRYING}
    serving, draining = by_phase[Phase.READY], by_phase[Phase.DRAINING]
    if not serving or not all(load.kv_capacity for load in serving):
        return None
    return Demand(_carried(serving, max_sequences), _carried(draining, max_sequences))


_CARRYING = (Phase.READY, Phase.DRAINING)


def _carried(loads: Sequence[Load], max_sequences: int) -> float:
    """In replicas; sequences that wait are taken to need as much KV memory as those that are open."""
    sequences = sum(load.sequences + load.queued for load in loads) / max_sequences
    return max(sequences, sum(map(_kv_share, loads)))


def _kv_share(load: Load) -> float:
    if not load.kv_capacity:
        return 0.0
    return load.kv_used / load.kv_capacity * (1 + load.queued / max(1, load.sequences))
