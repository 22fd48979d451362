"""Medians, percentiles, ratios with their intervals, and the goals that they are compared with. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from flyserve.bench.statistics import Interval, share


@dataclass(frozen=True, slots=True)
class Spread:
    """A value, such as a median, with the least and the greatest of those that it stands for."""

    value: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of waits, in seconds; as text in milliseconds."""

    p50: float
    p95: float
    p99: float

    def __str__(self) -> str:
        return " / ".join(f"{1e3 * seconds:.1f}" for seconds in (self.p50, self.p95, self.p99))


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and its measurement.

    Attributes:
        name: The measured ratio.
        limit: The value that `measured` must reach.
        measured: The ratio with its 95% interval, or that of all prompts with the least and the greatest.
        is_least: True if the limit is a lower one, False if it is an upper one.
    """

    name: str
    limit: float
    measured: Interval | Spread
    is_least: bool = True

    @property
    def is_met(self) -> bool:
        """True if the measured value reaches the limit."""
        return self._reaches(self.measured.value)

    @property
    def verdict(self) -> str:
        """Met or missed, and whether the whole interval, or every prompt, agrees."""
        match self.measured:
            case Interval(_, low, high):
                doubt = "within the noise"
            case Spread(_, low, high):
                doubt = "not by every prompt" if self.is_met else "by some prompts met"
        verdict = "met" if self.is_met else "missed"
        ends = {self._reaches(low), self._reaches(high)}
        return verdict if ends == {self.is_met} else f"{verdict}, {doubt}"

    def _reaches(self, value: float) -> bool:
        return value >= self.limit if self.is_least else value <= self.limit


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of at least one value."""
    return Spread(median(values), min(values), max(values))


def ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Return each value divided by the base value of the same repetition."""
    return [share(value, other) for value, other in zip(values, base, strict=True)]


def ratio_spread(values: Sequence[float], base: Sequence[float]) -> Spread:
    """Return the spread of `ratios`: a few repetitions are too few for a confidence interval."""
    return spread(ratios(values, base))


def percentiles(waits: Sequence[tuple[float, int]]) -> Percentiles | None:
    """Return percentiles of (wait, how often it counts), or None if there are none."""
    if not waits:
        return None
    seconds, counts = zip(*waits, strict=True)
    found = np.percentile(seconds, (50, 95, 99), weights=counts, method="inverted_cdf")
    return Percentiles(*(float(value) for value in found))
