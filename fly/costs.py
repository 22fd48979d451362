"""The duration of a forward pass as a function of its size, learned from measured times."""

import math
from bisect import bisect_left
from dataclasses import dataclass

from fly.clock import Clock
from fly.ewma import RecentMean

_BINS_PER_DOUBLING = 4
_MEMORY_FORWARDS = 10.0
_CERTAIN_FORWARDS = 3.0
_MAX_AGE_S = 60.0
_OUTLIER = 2.0


@dataclass(slots=True)
class _Point:
    """Forwards of similar size."""

    size: RecentMean
    seconds: RecentMean
    seen_at: float


class CostCurve:
    """Seconds of a forward by its size: measured at observed sizes, linear between them, never decreasing.

    Beyond the observed sizes the curve continues as a straight line, which in doubt is too low: a size that
    is wrongly estimated as cheap is tried and then measured, one wrongly estimated as expensive never is.
    Sizes that have not been observed for a minute are forgotten, since the machine may have changed.
    """

    def __init__(self, clock: Clock) -> None:
        """Start without observations."""
        self._clock = clock
        self._points: dict[int, _Point] = {}
        self._fit: tuple[list[float], list[float]] | None = ([], [])
        self._slope: float | None = None

    def observe(self, size: float, seconds: float) -> None:
        """Add a forward of `size` token rows; ignore invalid values."""
        if not (1 <= size < math.inf and 0 < seconds < math.inf):
            return
        key = round(_BINS_PER_DOUBLING * math.log2(size))
        point = self._points.get(key)
        if point is None:
            point = self._points[key] = self._new_point(size, seconds)
        point.size.add(size)
        point.seconds.add(min(point.seconds.value * _OUTLIER, seconds))
        point.seen_at = self._clock.now()
        self._fit = self._slope = None

    def estimate(self, size: float) -> float:
        """Return the seconds of a forward of this size; 0 before the first observation."""
        if self._fit is None:
            self._drop_old_points()
            self._fit = _non_decreasing(list(self._points.values()))
        sizes, seconds = self._fit
        if not sizes:
            return 0.0
        if size > sizes[-1]:
            if self._slope is None:
                self._slope = self._last_slope()
            return seconds[-1] + (size - sizes[-1]) * self._slope
        if size <= sizes[0]:
            slope = seconds[0] / sizes[0]
            if len(sizes) > 1:
                slope = min(slope, (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0]))
            return seconds[0] - slope * (sizes[0] - size)
        index = bisect_left(sizes, size)
        share = (size - sizes[index - 1]) / (sizes[index] - sizes[index - 1])
        return seconds[index - 1] + share * (seconds[index] - seconds[index - 1])

    def _new_point(self, size: float, seconds: float) -> _Point:
        """Start from the estimate if that is lower: the first forward of a size may have been delayed.

        Not below the observed sizes, where the estimate is the least that a forward may take.
        """
        point = _Point(
            RecentMean(size, _MEMORY_FORWARDS), RecentMean(seconds, _MEMORY_FORWARDS), self._clock.now()
        )
        is_below = all(size < each.size.value for each in self._points.values())
        if not is_below and 0 < (expected := self.estimate(size)) < seconds:
            point.seconds.add(expected)
        return point

    def _last_slope(self) -> float:
        """Return seconds per size over the upper half; a batch never costs more than its parts."""
        assert self._fit is not None
        sizes, seconds = self._fit
        half = sizes[-1] / 2
        if half <= sizes[0]:
            return 0.0
        return min((seconds[-1] - self.estimate(half)) / half, seconds[-1] / sizes[-1])

    def _drop_old_points(self) -> None:
        since = max(point.seen_at for point in self._points.values()) - _MAX_AGE_S
        self._points = {key: point for key, point in self._points.items() if point.seen_at >= since}


def _non_decreasing(points: list[_Point]) -> tuple[list[float], list[float]]:
    """Return sizes and seconds; neighbours are pooled until seconds never decrease (isotonic regression)."""
    points.sort(key=lambda point: point.size.value)
    points = _without_uncertain(points)
    blocks: list[tuple[float, float, int]] = []
    for point in points:
        seconds, weight, count = point.seconds.value, point.seconds.weight, 1
        while blocks and blocks[-1][0] >= seconds:
            previous, previous_weight, previous_count = blocks.pop()
            total = weight + previous_weight
            seconds = (seconds * weight + previous * previous_weight) / total
            weight, count = total, count + previous_count
        blocks.append((seconds, weight, count))
    return [p.size.value for p in points], [s for s, _, count in blocks for _ in range(count)]


def _without_uncertain(points: list[_Point]) -> list[_Point]:
    """Drop sizes with few observations between two neighbours with enough of them."""
    is_certain = [point.size.weight >= _CERTAIN_FORWARDS for point in points]
    uncertain = {
        index
        for index in range(1, len(points) - 1)
        if is_certain[index - 1] and not is_certain[index] and is_certain[index + 1]
    }
    return [point for index, point in enumerate(points) if index not in uncertain]
