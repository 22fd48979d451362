"""Medians with their spread. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from flyserve.bench.statistics import Interval, bootstrap, share, speed, tau, total

__all__ = ["Interval", "Spread", "bootstrap", "share", "speed", "spread", "tau", "total"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with the least and the greatest value."""

    value: float
    least: float
    most: float


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of at least one value."""
    return Spread(median(values), min(values), max(values))
