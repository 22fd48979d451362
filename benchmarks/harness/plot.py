"""Charts of the reports, as SVG."""

from collections.abc import Mapping, Sequence

from matplotlib.ticker import NullLocator, StrMethodFormatter

from demo.plot import COLOURS, new_axes, to_svg
from flyserve.bench.statistics import Interval

Points = Sequence[tuple[float, float]]


def line_chart(
    title: str, x_label: str, y_label: str, lines: Mapping[str, Points], is_logarithmic: bool = False
) -> str:
    """Draw each line through its points.

    Args:
        title: Text above the chart.
        x_label: Text below the horizontal axis.
        y_label: Text next to the vertical axis.
        lines: Points by name, at least one in total, in ascending order of x.
        is_logarithmic: Use a logarithmic horizontal axis with a tick at each x; every x must be above 0.
    """
    axes = new_axes()
    for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
        xs, ys = zip(*points, strict=True) if points else ((), ())
        axes.plot(xs, ys, color=colour, label=name, marker="o", markersize=3.0, linewidth=1.4)
    if is_logarithmic:
        axes.set_xscale("log")
        axes.set_xticks(sorted({x for points in lines.values() for x, _ in points}))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_title(title, loc="left")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return to_svg(axes)


def bar_chart(title: str, unit: str, bars: Mapping[str, Interval | float]) -> str:
    """Draw horizontal bars from 0, each with its value and a whisker for its interval.

    Args:
        title: Text above the chart.
        unit: Unit of the values.
        bars: Values by name, at least one.
    """
    axes = new_axes(height=0.5 + 0.24 * len(bars))
    axes.grid(visible=False, axis="y")
    for row, bar in enumerate(bars.values()):
        value, low, high = _ends(bar)
        axes.barh(row, value, color=COLOURS[0], height=0.65)
        axes.plot([low, high], [row, row], color="#222222", linewidth=0.9)
        axes.annotate(f"{value:.4g}", (high, row), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_title(f"{title}, {unit}", loc="left")
    return to_svg(axes)


def _ends(bar: Interval | float) -> tuple[float, float, float]:
    match bar:
        case Interval(value, low, high):
            return value, low, high
        case _:
            return bar, bar, bar
