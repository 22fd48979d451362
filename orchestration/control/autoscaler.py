"""Autoscaler: measure the demand of every autoscaled tier, and derive its number of replicas from it."""

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from flyserve.core.messages import Load, Role
from orchestration.control.instances import Instance, Phase
from orchestration.deployment.autoscaling import Autoscaling
from orchestration.deployment.file import Deployment
from orchestration.deployment.scaling import autoscaled

logger = logging.getLogger(__name__)

_LONGEST_GAP_S = 10.0
"""After a longer gap between two samples the history is discarded: the load in between is unknown."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Demand:
    """The load of a tier in replicas: 1.5 is the load of one and a half full replicas.

    Attributes:
        serving: Load of the replicas that take new sequences.
        draining: Load of the replicas that drain. These sequences need no room elsewhere, but similar ones
            are expected to follow them.
    """

    serving: float
    draining: float = 0.0


@dataclass(frozen=True, slots=True)
class DemandSample:
    """The demand at one time, in replicas."""

    at: float
    demand: float


@dataclass(frozen=True, slots=True)
class DemandHistory:
    """The demand since the number of replicas was last changed by anything but this policy.

    Attributes:
        replicas: The desired number of replicas.
        since: Clock reading of the first sample.
        lows: Samples within the upscale delay, of serving replicas, that no later sample is as low as; the
            first is the lowest, the last the latest sample.
        peaks: Samples within the downscale delay, draining replicas included, that no later sample is as high
            as; the first is the highest.
    """

    replicas: int
    since: float
    lows: tuple[DemandSample, ...] = ()
    peaks: tuple[DemandSample, ...] = ()

    @property
    def latest(self) -> DemandSample:
        return self.lows[-1]


@dataclass(frozen=True, slots=True)
class PendingChange:
    """The next number of replicas and the time of the change, if the load stays as it is."""

    replicas: int
    at: float


def replicas_needed(demand: float, replicas: int, settings: Autoscaling) -> int:
    """Return the number that serves `demand` at the target load; `replicas` if within the tolerance."""
    if replicas and abs(demand / (replicas * settings.target_load) - 1) <= settings.tolerance + _ROUNDING:
        return settings.within(replicas)
    return settings.within(math.ceil(demand / settings.target_load - _ROUNDING))


def decide(
    history: DemandHistory | None, demand: Demand | None, replicas: int, settings: Autoscaling, now: float
) -> tuple[DemandHistory | None, int]:
    """Return the history with one more sample, and the number of replicas desired from now on.

    Scale up to what the lowest demand within the upscale delay needs; scale down to what the highest demand
    within the downscale delay needs. So an added replica stays for at least the downscale delay, and a
    drained one is not missed within the upscale delay. The demand is that of the whole tier: replicas that
    are starting or still empty do not affect it. From zero it scales up at once.

    Args:
        history: History up to the previous sample; None without any, as in a controller that just started.
        demand: None if unknown: earlier samples are then discarded.
        replicas: The number desired so far. If it is not the one decided last, it was changed from outside;
            that number stands until the history since then asks for another.
        settings: Autoscaling section of the tier.
        now: Clock reading of this sample.
    """
    if demand is None:
        return None, replicas
    if history is None or history.replicas != replicas or now - history.latest.at > _LONGEST_GAP_S:
        history = DemandHistory(replicas, since=now)
    low = DemandSample(now, demand.serving)
    peak = DemandSample(now, demand.serving + demand.draining)
    lows = [sample for sample in history.lows if sample.demand < low.demand]
    peaks = [sample for sample in history.peaks if sample.demand > peak.demand]
    updated = replace(
        history,
        lows=_within(lows, low, settings.upscale_delay_s),
        peaks=_within(peaks, peak, settings.downscale_delay_s),
    )
    change = next_change(updated, settings)
    if change is None or change.at > now:
        return updated, replicas
    return replace(updated, replicas=change.replicas), change.replicas


def next_change(history: DemandHistory, settings: Autoscaling) -> PendingChange | None:
    """Return the next change; None if the load asks for none."""
    replicas = history.replicas
    more = _pending(history, history.lows, settings, lambda number: number > replicas)
    fewer = _pending(history, history.peaks, settings, lambda number: number < replicas)
    if more is not None:
        return replace(more, at=more.at + (settings.upscale_delay_s if replicas else 0.0))
    return None if fewer is None else replace(fewer, at=fewer.at + settings.downscale_delay_s)


def explain(history: DemandHistory | None, settings: Autoscaling) -> str:
    """Return the decision and its reason, in a few words for people."""
    if history is None:
        return "waiting until all serving replicas have reported their loads"
    if not history.replicas:
        return "stopped while idle: the next request starts a replica"
    load = history.latest.demand / history.replicas
    text = f"load {load:.0%}, target {settings.target_load:.0%}"
    if (change := next_change(history, settings)) is not None:
        left_s = max(0.0, change.at - history.latest.at)
        return f"{text}: {change.replicas} if it lasts for {left_s:.0f} s more"
    if abs(load / settings.target_load - 1) <= settings.tolerance:
        return f"{text}: near enough"
    if load > settings.target_load:
        return f"{text}: at the maximum"
    return f"{text}: " + ("at the minimum" if history.replicas == settings.min else "one fewer is too few")


def _pending(
    history: DemandHistory,
    samples: Sequence[DemandSample],
    settings: Autoscaling,
    is_change: Callable[[int], bool],
) -> PendingChange | None:
    """Return the change that all samples after the latest exception ask for, and that exception's time."""
    numbers = [(sample, replicas_needed(sample.demand, history.replicas, settings)) for sample in samples]
    changes = [number for _, number in numbers if is_change(number)]
    since = max((sample.at for sample, number in numbers if not is_change(number)), default=history.since)
    return PendingChange(changes[0], since) if changes else None


def _within(
    earlier: Sequence[DemandSample], latest: DemandSample, delay_s: float
) -> tuple[DemandSample, ...]:
    return (*(sample for sample in earlier if sample.at > latest.at - delay_s), latest)


@dataclass(frozen=True, slots=True)
class AutoscalingStatus:
    """The autoscaling state of a tier.

    Attributes:
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

    def update(
        self, deployment: Deployment, instances: Collection[Instance], waiting: int, now: float
    ) -> dict[Role, int]:
        """Record the present demand; return the new number of replicas of each tier that must change.

        `waiting` is the number of sequences that wait in routers: each needs a place in every tier.
        """
        changed = {}
        for role, (tier, settings) in autoscaled(deployment).items():
            own = [instance for instance in instances if instance.role is role]
            demand = tier_demand(own, tier.max_sequences, waiting, is_stopped=not tier.replicas)
            before = self._histories.get(role)
            self._histories[role], number = decide(before, demand, tier.replicas, settings, now)
            if number != tier.replicas:
                logger.info("%s: %d replicas instead of %d: %s", role, number, tier.replicas, demand)
                changed[role] = number
        return changed

    def status(self, deployment: Deployment) -> dict[Role, AutoscalingStatus]:
        """Return the status by tier, as of the latest update."""
        return {
            role: AutoscalingStatus(settings.min, settings.max, explain(self._histories.get(role), settings))
            for role, (_, settings) in autoscaled(deployment).items()
        }


def tier_demand(
    instances: Collection[Instance], max_sequences: int, waiting: int = 0, is_stopped: bool = False
) -> Demand | None:
    """Return the load of a tier's replicas; None while none of them serves, or one has not reported yet.

    A tier that `is_stopped` shall have no replica: then the waiting sequences alone count.

    Instances that are starting or do not answer count as empty; a replica can hold `max_sequences`. The
    serving ones must take the `waiting` sequences of routers as well.
    """
    serving = [i.load for i in instances if i.phase is Phase.READY]
    draining = [i.load for i in instances if i.phase is Phase.DRAINING]
    if not all(load.kv_capacity for load in serving) or not (serving or is_stopped):
        return None
    return Demand(_load(serving, max_sequences, waiting), _load(draining, max_sequences))


def _load(loads: Sequence[Load], max_sequences: int, waiting: int = 0) -> float:
    """Return a load in replicas; a waiting sequence is assumed to need as much KV memory as an open one."""
    opened = sum(load.sequences for load in loads)
    waiting += sum(load.queued for load in loads)
    kv_held = sum(load.kv_used / load.kv_capacity for load in loads if load.kv_capacity)
    return max((opened + waiting) / max_sequences, kv_held * (1 + waiting / max(1, opened)))
