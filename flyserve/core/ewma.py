"""Averages that forget: a moving average, and a weighted mean of recent values."""


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
