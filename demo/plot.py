"""Charts as SVG: the same figures give the same file. Needs matplotlib, a development dependency."""

import io
from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, ScalarFormatter

COLOURS = ("#2a6fb0", "#c4622d", "#3c8d53", "#8b5fb0", "#777777")
matplotlib.rcParams.update(
    {"svg.fonttype": "none", "svg.hashsalt": "flyserve", "font.family": "sans-serif", "font.size": 8.0}
)
Curve = Sequence[tuple[int, float]]


def new_axes(width: float = 5.6, height: float = 3.0) -> Axes:
    """Return the axes of a new figure, with a light grid; the size is in inches."""
    axes: Axes = Figure(figsize=(width, height), layout="constrained").subplots()
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def to_svg(axes: Axes) -> str:
    """Return the figure of the axes as SVG, without a date and with fixed ids."""
    text = io.StringIO()
    metadata = {"Date": None, "Creator": None}
    axes.get_figure(root=True).savefig(text, format="svg", metadata=metadata)  # type: ignore[union-attr]
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def loss_plot(curves: Mapping[str, Curve]) -> str:
    """Draw each loss over the share of its training, on a logarithmic axis."""
    axes = new_axes(6.4)
    for colour, (name, curve) in zip(COLOURS, curves.items(), strict=False):
        last = curve[-1][0]
        axes.plot([step / last for step, _ in curve], [loss for _, loss in curve], color=colour, label=name)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(xlabel="share of training done", ylabel="loss")
    axes.legend(frameon=False)
    return to_svg(axes)
