"""How many replicas a tier should have, by what it carries. Pure: the times are the caller's clock."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pydantic import Field, ValidationInfo, field_validator

from services.common.config import Config

_LONGEST_GAP_S = 10.0
"""After a longer time without a look nothing is known of what was carried in between."""
_ROUNDING = 1e-9


class Autoscaling(Config):
    """How the number of a tier's replicas follows its load.

    The load of a replica is the share of its `max_sequences` that are open or wait, or the share of its KV
    cache that these take, whichever is more.
    """

    min: int = Field(1, ge=1, le=1024)
    """Fewest replicas, which stay when there is no load."""

    max: int = Field(ge=1, le=1024)
    """Most replicas."""

    target_load: float = Field(0.7, ge=0.01, le=1)
    """Load at which a replica is kept; the remaining capacity serves new requests while others start."""

    tolerance: float = Field(0.1, ge=0, le=0.5)
    """Share of the target by which the load may differ from it without any change."""

    upscale_delay_s: float = Field(5.0, ge=0, le=3600)
    """Replicas are added for a load that has lasted this long."""

    downscale_delay_s: float = Field(300.0, ge=1, le=86_400)
    """Replicas are drained that no load within this time would have needed; longer than the pauses of the
    traffic."""

    @field_validator("max")
    @classmethod
    def _is_not_below_min(cls, value: int, info: ValidationInfo) -> int:
        if value < (fewest := info.data.get("min", 1)):
            raise ValueError(f"must be at least min, which is {fewest}")
        return value

    def within(self, number: int) -> int:
        """The nearest number within the limits."""
        return max(self.min, min(number, self.max))


@dataclass(frozen=True, slots=True)
class Demand:
    """What a tier carries, in replicas: 1.5 is as much as one and a half hold when they are full.

    Attributes:
        serving: Held by replicas that take new sequences.
        draining: Held by those that are being let go. These sequences need no other room, but more like them
            will come.
    """

    serving: float
    draining: float = 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """What a tier carried at a time, in replicas."""

    at: float
    demand: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen of a tier since somebody else changed its number of replicas.

    Attributes:
        replicas: How many there should be.
        since: Clock reading of the first look.
        latest: The latest look at those that serve.
        lows: Of the looks within the upscale delay those with none as low after them; the first is the
            lowest.
        peaks: Of the looks within the downscale delay, draining replicas included, those with none as high
            after them; the first is the highest.
    """

    replicas: int
    since: float
    latest: Look
    lows: tuple[Look, ...] = ()
    peaks: tuple[Look, ...] = ()


@dataclass(frozen=True, slots=True)
class Prospect:
    """How many replicas there will be, and from when on, if the load stays as it is."""

    replicas: int
    at: float


def wanted(demand: float, replicas: int, settings: Autoscaling) -> int:
    """How many replicas carry `demand` at the target load; `replicas` where that is near enough."""
    ratio = demand / (replicas * settings.target_load)
    if abs(ratio - 1) <= settings.tolerance + _ROUNDING:
        return settings.within(replicas)
    return settings.within(math.ceil(demand / settings.target_load - _ROUNDING))


def decide(
    evidence: Evidence | None, demand: Demand | None, replicas: int, settings: Autoscaling, now: float
) -> tuple[Evidence | None, int]:
    """The evidence with another look at the tier, and how many replicas there should be from now on.

    As many as the lowest demand within the upscale delay asks for, if more; as the highest within the
    downscale delay asks for, if fewer. So replicas that were added stay for the downscale delay at least, and
    what was drained is not missed within the upscale delay. The demand is that of the whole tier: replicas
    that are starting, or that nobody uses yet, change nothing about it.

    Args:
        evidence: Of the look before; None knows nothing, as a controller that was just started.
        demand: None where it is not known: what was seen before counts no more.
        replicas: How many there should be so far; another number than was decided is somebody else's
            decision, which stands until there is evidence from then on.
        settings: Of the tier.
        now: Of this look.
    """
    if demand is None:
        return None, replicas
    if evidence is None or evidence.replicas != replicas or now - evidence.latest.at > _LONGEST_GAP_S:
        evidence = Evidence(replicas, now, Look(now, demand.serving))
    low, peak = Look(now, demand.serving), Look(now, demand.serving + demand.draining)
    lows = [look for look in evidence.lows if look.demand < low.demand]
    peaks = [look for look in evidence.peaks if look.demand > peak.demand]
    seen = Evidence(
        replicas,
        evidence.since,
        low,
        _within(lows, low, settings.upscale_delay_s),
        _within(peaks, peak, settings.downscale_delay_s),
    )
    prospect = foresee(seen, settings)
    if prospect is None or prospect.at > now:
        return seen, replicas
    return replace(seen, replicas=prospect.replicas), prospect.replicas


def foresee(evidence: Evidence, settings: Autoscaling) -> Prospect | None:
    """The next change; None where none is asked for."""
    replicas = evidence.replicas
    more = _prospect(evidence, evidence.lows, settings, lambda number: number > replicas)
    fewer = _prospect(evidence, evidence.peaks, settings, lambda number: number < replicas)
    if more is not None:
        return replace(more, at=more.at + settings.upscale_delay_s)
    return None if fewer is None else replace(fewer, at=fewer.at + settings.downscale_delay_s)


def explain(evidence: Evidence | None, settings: Autoscaling) -> str:
    """What is decided and why, in a few words for people."""
    if evidence is None:
        return "waits until the replicas that serve have said their loads"
    carried = evidence.latest.demand / evidence.replicas
    load = f"load {carried:.0%}, target {settings.target_load:.0%}"
    if (prospect := foresee(evidence, settings)) is not None:
        left_s = max(0.0, prospect.at - evidence.latest.at)
        return f"{load}: {prospect.replicas} if it lasts for {left_s:.0f} s more"
    if abs(carried / settings.target_load - 1) <= settings.tolerance:
        return f"{load}: near enough"
    if carried > settings.target_load:
        return f"{load}: at the maximum"
    return f"{load}: " + ("at the minimum" if evidence.replicas == settings.min else "one fewer is too few")


def _prospect(
    evidence: Evidence, looks: Sequence[Look], settings: Autoscaling, asks: Callable[[int], bool]
) -> Prospect | None:
    """What the looks behind the last one that does not ask for it ask for, and since when."""
    numbers = [(look, wanted(look.demand, evidence.replicas, settings)) for look in looks]
    asked = [number for _, number in numbers if asks(number)]
    since = max((look.at for look, number in numbers if not asks(number)), default=evidence.since)
    return Prospect(asked[0], since) if asked else None


def _within(earlier: Sequence[Look], latest: Look, delay_s: float) -> tuple[Look, ...]:
    return (*(look for look in earlier if look.at > latest.at - delay_s), latest)
