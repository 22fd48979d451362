"""Averages that forget: a moving average, a weighted mean of recent values, a line through recent points."""


class Ewma:
    """An exponentially weighted moving average; the first value counts in full.

    Attributes:
        value: The average; None before the first value.
    """

    __slots__ = ("_share", "value")

    def __init__(self, share: float) -> None:
        """Give the latest value the weight `share`, in (0, 1], in the average."""
        self._share = share
        self.value: float | None = None

    def add(self, value: float) -> None:
        """Add a value."""
        self.value = value if self.value is None else self.value + self._share * (value - self.value)


class RecentMean:
    """A weighted mean: of the first values with equal shares, then with exponential forgetting.

    Unlike `Ewma` it starts from an assumed value, which the first value replaces, and it does not favour the
    first values: n values of weight 1 give their mean until n exceeds the memory.

    Attributes:
        value: The mean; the assumed value before the first value.
        weight: Total weight of the values in it, at most the memory.
    """

    __slots__ = ("_memory", "value", "weight")

    def __init__(self, value: float, memory: float) -> None:
        """Assume `value`; forget with a time constant of `memory`, in values of weight 1."""
        self.value = value
        self.weight = 0.0
        self._memory = memory

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add a finite value with a weight above 0."""
        self.weight = min(self._memory, self.weight + weight)
        self.value += (value - self.value) * min(1.0, weight / self.weight)


class RecentLine:
    """A straight line through recent points (x, y); without other evidence it is y = x.

    The slope is that of weighted least squares, between 0 and 1, with a prior of 1.
    """

    __slots__ = ("_covariance", "_keep", "_prior", "_variance", "_x", "_y")

    def __init__(self, memory: float, prior: float) -> None:
        """Create a line without points.

        Args:
            memory: Number of points after which the earlier ones count about a third.
            prior: Weight of the slope 1: that of points whose squared distances in x from their mean sum up
                to this.
        """
        self._x, self._y = RecentMean(0.0, memory), RecentMean(0.0, memory)
        self._keep = 1 - 1 / memory
        self._prior = prior
        self._variance = self._covariance = 0.0

    def add(self, x: float, y: float) -> None:
        """Add a finite point."""
        by_x = x - self._x.value if self._x.weight else 0.0
        self._x.add(x)
        self._y.add(y)
        self._variance = self._keep * self._variance + by_x * (x - self._x.value)
        self._covariance = self._keep * self._covariance + by_x * (y - self._y.value)

    def estimate(self, x: float) -> float:
        """Return y at `x`."""
        slope = (self._covariance + self._prior) / (self._variance + self._prior)
        return self._y.value + max(0.0, min(1.0, slope)) * (x - self._x.value)
