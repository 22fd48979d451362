"""What a forward costs by its size, learned from the times that a service reports."""

import math
from bisect import bisect_left
from dataclasses import dataclass

from fly.clock import Clock

_BINS_PER_DOUBLING = 4
_MEMORY_FORWARDS = 10.0
_SURE_FORWARDS = 3.0
_FORGET_AFTER_S = 60.0
_OUTLIER = 2.0


class Average:
    """A mean over recent values: of the first ones all alike, of later ones with exponential forgetting.

    Attributes:
        value: The mean; as it was given at first, until a value comes.
        weight: Of the values that it is made of, at most the memory.
    """

    __slots__ = ("_memory", "value", "weight")

    def __init__(self, value: float, memory: float) -> None:
        self.value = value
        self.weight = 0.0
        self._memory = memory

    def add(self, value: float, weight: float = 1.0) -> None:
        """Takes a finite value in."""
        self.weight = min(self._memory, self.weight + weight)
        self.value += (value - self.value) * min(1.0, weight / self.weight)


@dataclass(slots=True)
class _Point:
    """Forwards of about one size."""

    size: Average
    seconds: Average
    seen_at: float


class CostCurve:
    """Seconds of a forward by its size: measured where it was seen, straight in between, never falling.

    Beyond what was seen it goes on in a straight line, in doubt below the truth: what is wrongly taken for
    cheap is tried and then known, what is wrongly taken for dear never is. What has not been seen for a
    minute is forgotten: the machine may have become another.
    """

    def __init__(self, clock: Clock, rises: bool = True) -> None:
        """Knows nothing yet.

        Args:
            clock: For what is forgotten.
            rises: Beyond the largest size seen it goes on as steeply as up to there, else it is level.
        """
        self._clock = clock
        self._rises = rises
        self._points: dict[int, _Point] = {}
        self._fit: tuple[list[float], list[float]] | None = ([], [])

    def observe(self, size: float, seconds: float, weight: float = 1.0) -> None:
        """Adds a forward; nonsense is left out.

        Args:
            size: At least 1.
            seconds: What it took.
            weight: One over the number of times that this forward is told.
        """
        if not (1 <= size < math.inf and 0 < seconds < math.inf and 0 < weight <= 1):
            return
        key = round(_BINS_PER_DOUBLING * math.log2(size))
        point = self._points.get(key)
        if point is None:
            point = self._points[key] = self._new_point(size, seconds)
        point.size.add(size, weight)
        point.seconds.add(min(point.seconds.value * _OUTLIER, seconds), weight)
        point.seen_at = self._clock.now()
        self._fit = None

    def estimate(self, size: float) -> float:
        """Seconds of a forward of this size; 0 where nothing was ever seen."""
        if self._fit is None:
            self._forget()
            self._fit = _rising(list(self._points.values()))
        sizes, seconds = self._fit
        if not sizes:
            return 0.0
        if size > sizes[-1]:
            return seconds[-1] + (size - sizes[-1]) * self._last_slope() * self._rises
        if size <= sizes[0]:
            slope = seconds[0] / sizes[0]
            if len(sizes) > 1:
                slope = min(slope, (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0]))
            return seconds[0] - slope * (sizes[0] - size)
        index = bisect_left(sizes, size)
        share = (size - sizes[index - 1]) / (sizes[index] - sizes[index - 1])
        return seconds[index - 1] + share * (seconds[index] - seconds[index - 1])

    def _new_point(self, size: float, seconds: float) -> _Point:
        """Starts from what was expected, if that is less: the first forward of its size may be held up."""
        point = _Point(Average(size, _MEMORY_FORWARDS), Average(seconds, _MEMORY_FORWARDS), self._clock.now())
        if 0 < (expected := self.estimate(size)) < seconds:
            point.seconds.add(expected)
        return point

    def _last_slope(self) -> float:
        """Seconds per size over the upper half of what was seen; a batch is never dearer than its parts."""
        assert self._fit is not None
        sizes, seconds = self._fit
        half = sizes[-1] / 2
        if half <= sizes[0]:
            return 0.0
        return min((seconds[-1] - self.estimate(half)) / half, seconds[-1] / sizes[-1])

    def _forget(self) -> None:
        since = max(point.seen_at for point in self._points.values()) - _FORGET_AFTER_S
        self._points = {key: point for key, point in self._points.items() if point.seen_at >= since}


def _rising(points: list[_Point]) -> tuple[list[float], list[float]]:
    """Sizes and seconds, the latter made never to fall by pooling neighbours (isotonic regression)."""
    points.sort(key=lambda point: point.size.value)
    points = _without_doubtful(points)
    blocks: list[tuple[float, float, int]] = []
    for point in points:
        seconds, weight, count = point.seconds.value, point.seconds.weight, 1
        while blocks and blocks[-1][0] >= seconds:
            before, weight_before, count_before = blocks.pop()
            total = weight + weight_before
            seconds = (seconds * weight + before * weight_before) / total
            weight, count = total, count + count_before
        blocks.append((seconds, weight, count))
    return [p.size.value for p in points], [s for s, _, count in blocks for _ in range(count)]


def _without_doubtful(points: list[_Point]) -> list[_Point]:
    """Leaves out what was hardly seen where both neighbours were seen well."""
    is_sure = [point.size.weight >= _SURE_FORWARDS for point in points]
    doubtful = {
        index
        for index in range(1, len(points) - 1)
        if is_sure[index - 1] and not is_sure[index] and is_sure[index + 1]
    }
    return [point for index, point in enumerate(points) if index not in doubtful]
