"""Totals, shares and bootstrap intervals of measured responses. Pure."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from flyserve.core.response import Statistics

_RESAMPLES = 1000
_CONFIDENCE = 0.95

T = TypeVar("T")


class Timed(Protocol):
    """A response with its duration and its statistics."""

    @property
    def seconds(self) -> float:
        """Time from the call to the whole response, as the client sees it."""

    @property
    def statistics(self) -> Statistics:
        """Statistics as the server reports them."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its 95% confidence interval (bootstrap)."""

    value: float
    low: float
    high: float


def speed(runs: Sequence[Timed]) -> float:
    """Return tokens per second: all tokens divided by all seconds."""
    return share(total(runs, lambda s: s.emitted), sum(run.seconds for run in runs))


def tau(runs: Sequence[Timed]) -> float:
    """Return the tokens emitted in rounds with a draft, divided by the number of these rounds."""
    return mean_tau([run.statistics for run in runs])


def mean_tau(statistics: Sequence[Statistics]) -> float:
    """Return tau over several responses."""
    return share(sum(s.tau * s.draft_rounds for s in statistics), sum(s.draft_rounds for s in statistics))


def total(runs: Sequence[Timed], figure: Callable[[Statistics], float]) -> float:
    """Return the sum of one statistic over all responses."""
    return sum(figure(run.statistics) for run in runs)


def share(part: float, whole: float) -> float:
    """Return `part / whole`, or 0 if `whole` is 0."""
    return part / whole if whole else 0.0


def bootstrap(units: Sequence[T], figure: Callable[[Sequence[T]], float]) -> Interval:
    """Return a figure of independent units and its interval over seeded resamples of the units."""
    rng = random.Random(0)
    drawn = sorted(figure(rng.choices(units, k=len(units))) for _ in range(_RESAMPLES))
    tail = round(_RESAMPLES * (1 - _CONFIDENCE) / 2)
    return Interval(figure(units), drawn[tail], drawn[-tail - 1])
