"""What was promised, and whether it was measured. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.summary import Interval
from benchmarks.text_table import TextTable


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise and its measurement.

    Attributes:
        name: What was promised.
        limit: What `measured` must come to.
        measured: With its 95% interval.
        is_least: At least the limit; else at most.
    """

    name: str
    limit: float
    measured: Interval
    is_least: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the measured value keeps the promise."""
        return self._keeps(self.measured.value)

    @property
    def verdict(self) -> str:
        """Met or missed, and whether all of the interval says so."""
        said = "met" if self.is_met else "missed"
        ends = {self._keeps(self.measured.low), self._keeps(self.measured.high)}
        return said if ends == {self.is_met} else f"{said}, within the noise"

    def _keeps(self, value: float) -> bool:
        return value >= self.limit if self.is_least else value <= self.limit


def bars_table(bars: Sequence[Bar]) -> TextTable:
    """A row per promise."""
    heads = ("promised", "bar", "measured", "95% interval", "")
    return TextTable("what was promised", heads, tuple(_row(bar) for bar in bars))


def ratio_cells(ratio: Interval) -> tuple[str, str]:
    """A ratio and its interval."""
    return f"{ratio.value:.2f}x", f"{ratio.low:.2f} to {ratio.high:.2f}"


def _row(bar: Bar) -> tuple[str, ...]:
    sign = ">=" if bar.is_least else "<="
    return (bar.name, f"{sign} {bar.limit:.2f}x", *ratio_cells(bar.measured), bar.verdict)
