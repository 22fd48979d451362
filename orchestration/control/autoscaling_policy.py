"""Autoscaling policy: derive a tier's number of replicas from its load. Pure: the caller has the clock."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import Field, ValidationInfo, field_validator

from services.common.config import Config

_LONGEST_GAP_S = 10.0
"""After a longer gap between two samples the history is discarded: the load in between is unknown."""
_ROUNDING = 1e-9


class Autoscaling(Config):
    """Limits and delays with which the number of a tier's replicas follows its load.

    The load of a replica is the share of its `max_sequences` that are open or queued, or the share of its KV
    cache that these take, whichever is higher.
    """

    min: int = Field(1, ge=1, le=1024)
    """Fewest replicas, kept while the tier is idle."""

    max: int = Field(ge=1, le=1024)
    """Most replicas."""

    target_load: float = Field(0.7, ge=0.01, le=1)
    """Load per replica to aim at; the rest absorbs new work while replicas start."""

    tolerance: float = Field(0.1, ge=0, le=0.5)
    """Share of the target by which the load may differ from it without any change."""

    upscale_delay_s: float = Field(5.0, ge=0, le=3600)
    """Seconds that a higher load must last before replicas are added."""

    downscale_delay_s: float = Field(300.0, ge=1, le=86_400)
    """Seconds during which a replica must not have been needed before it is drained; longer than the pauses
    of the traffic."""

    @field_validator("max")
    @classmethod
    def _is_not_below_min(cls, value: int, info: ValidationInfo) -> int:
        if value < (fewest := info.data.get("min", 1)):
            raise ValueError(f"must be at least min, which is {fewest}")
        return value

    def within(self, number: int) -> int:
        """Return the nearest number within the limits."""
        return max(self.min, min(number, self.max))


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
        latest: The latest sample, of serving replicas.
        lows: Samples within the upscale delay that no later sample is as low as; the first is the lowest.
        peaks: Samples within the downscale delay, draining replicas included, that no later sample is as high
            as; the first is the highest.
    """

    replicas: int
    since: float
    latest: DemandSample
    lows: tuple[DemandSample, ...] = ()
    peaks: tuple[DemandSample, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingChange:
    """The next number of replicas and the time of the change, if the load stays as it is."""

    replicas: int
    at: float


def replicas_needed(demand: float, replicas: int, settings: Autoscaling) -> int:
    """Return the number that serves `demand` at the target load; `replicas` if within the tolerance."""
    ratio = demand / (replicas * settings.target_load)
    if abs(ratio - 1) <= settings.tolerance + _ROUNDING:
        return settings.within(replicas)
    return settings.within(math.ceil(demand / settings.target_load - _ROUNDING))


def decide(
    history: DemandHistory | None, demand: Demand | None, replicas: int, settings: Autoscaling, now: float
) -> tuple[DemandHistory | None, int]:
    """Return the history with one more sample, and the number of replicas desired from now on.

    Scale up to what the lowest demand within the upscale delay needs; scale down to what the highest demand
    within the downscale delay needs. So an added replica stays for at least the downscale delay, and a
    drained one is not missed within the upscale delay. The demand is that of the whole tier: replicas that
    are starting or still empty do not affect it.

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
        history = DemandHistory(replicas, since=now, latest=DemandSample(now, demand.serving))
    low = DemandSample(now, demand.serving)
    peak = DemandSample(now, demand.serving + demand.draining)
    lows = [sample for sample in history.lows if sample.demand < low.demand]
    peaks = [sample for sample in history.peaks if sample.demand > peak.demand]
    updated = DemandHistory(
        replicas=replicas,
        since=history.since,
        latest=low,
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
        return replace(more, at=more.at + settings.upscale_delay_s)
    return None if fewer is None else replace(fewer, at=fewer.at + settings.downscale_delay_s)


def explain(history: DemandHistory | None, settings: Autoscaling) -> str:
    """Return the decision and its reason, in a few words for people."""
    if history is None:
        return "waiting until all serving replicas have reported their loads"
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
