"""The duration of a forward pass as a function of its size, learned from measured times."""

import math
from bisect import bisect_left
from dataclasses import dataclass, field

from flyserve.core.clock import Clock
from flyserve.core.ewma import RecentMean

_BINS_PER_DOUBLING = 4
_MEMORY_FORWARDS = 10.0
_CERTAIN_FORWARDS = 3.0
"""Forwards of a size from which it counts, if there is such a size: the first one may have been delayed."""
_MAX_AGE_S = 60.0
_OUTLIER = 2.0


@dataclass(slots=True)
class _Point:
    """Forwards of similar size."""

    size: RecentMean = field(default_factory=lambda: RecentMean(0.0, _MEMORY_FORWARDS))
    seconds: RecentMean = field(default_factory=lambda: RecentMean(0.0, _MEMORY_FORWARDS))
    seen_at: float = 0.0


class CostCurve:
    """Seconds of a forward by its size: measured at observed sizes, linear between them, never decreasing.

    Beyond the observed sizes the curve continues as a straight line, below them it begins at zero: in doubt a
    cost is too low. Sizes that have not been observed for a minute are forgotten, since the machine may have
    changed.
    """

    def __init__(self, clock: Clock) -> None:
        """Start without observations."""
        self._clock = clock
        self._points: dict[int, _Point] = {}
        self._fit: tuple[list[float], list[float]] | None = ([0.0], [0.0])

    def observe(self, size: float, seconds: float) -> None:
        """Add a forward of `size` token rows; ignore invalid values."""
        if not (1 <= size < math.inf and 0 < seconds < math.inf):
            return
        key = round(_BINS_PER_DOUBLING * math.log2(size))
        point = self._points.setdefault(key, _Point())
        if point.seconds.weight:
            seconds = min(seconds, _OUTLIER * point.seconds.value)
        point.size.add(size)
        point.seconds.add(seconds)
        point.seen_at = self._clock.now()
        self._fit = None

    def estimate(self, size: float) -> float:
        """Return the seconds of a forward of this size; 0 before the first observation."""
        if self._fit is None:
            self._drop_old_points()
            self._fit = _non_decreasing(list(self._points.values()))
        sizes, seconds = self._fit
        if size > sizes[-1]:
            return seconds[-1] + (size - sizes[-1]) * self._last_slope()
        index = max(1, bisect_left(sizes, size))
        share = (size - sizes[index - 1]) / (sizes[index] - sizes[index - 1])
        return seconds[index - 1] + share * (seconds[index] - seconds[index - 1])

    def _last_slope(self) -> float:
        """Return seconds per size over the upper half; a batch never costs more than its parts."""
        assert self._fit is not None
        sizes, seconds = self._fit
        half = sizes[-1] / 2
        if half <= sizes[min(1, len(sizes) - 1)]:
            return 0.0
        return min((seconds[-1] - self.estimate(half)) / half, seconds[-1] / sizes[-1])

    def _drop_old_points(self) -> None:
        since = max(point.seen_at for point in self._points.values()) - _MAX_AGE_S
        self._points = {key: point for key, point in self._points.items() if point.seen_at >= since}


def _non_decreasing(points: list[_Point]) -> tuple[list[float], list[float]]:
    """Return sizes and seconds; neighbours are pooled until seconds never decrease (isotonic regression)."""
    certain = [point for point in points if point.size.weight >= _CERTAIN_FORWARDS]
    points = sorted(certain or points, key=lambda point: point.size.value)
    blocks: list[tuple[float, float, int]] = []
    for point in points:
        seconds, weight, count = point.seconds.value, point.seconds.weight, 1
        while blocks and blocks[-1][0] >= seconds:
            previous, previous_weight, previous_count = blocks.pop()
            total = weight + previous_weight
            seconds = (seconds * weight + previous * previous_weight) / total
            weight, count = total, count + previous_count
        blocks.append((seconds, weight, count))
    return [0.0, *(p.size.value for p in points)], [0.0, *(s for s, _, count in blocks for _ in range(count))]
