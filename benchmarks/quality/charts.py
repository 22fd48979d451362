"""The charts of a group: what its factor does to tau and to retention."""

from collections.abc import Callable

from benchmarks.quality.figures import Figures
from benchmarks.quality.results import GroupResult
from benchmarks.svg import Points, line_chart

_FIGURES: dict[str, tuple[str, Callable[[Figures], float]]] = {
    "tau": ("tokens per round (tau)", lambda figures: figures.tau.value),
    "retention": ("accuracy by plain decoding's, %", lambda figures: figures.retention.value * 100),
}


def charts_of(result: GroupResult) -> dict[str, str]:
    """SVG by file name; none where no number varies."""
    charts = {}
    for name, (label, figure) in _FIGURES.items():
        lines = _lines(result, figure)
        if any(len(points) > 1 for points in lines.values()):
            title = f"{result.group.title}: {name}"
            chart = line_chart(title, result.group.title.lower(), label, lines)
            charts[f"quality-{result.group.name.replace('_', '-')}-{name}.svg"] = chart
    return charts


def _lines(result: GroupResult, figure: Callable[[Figures], float]) -> dict[str, Points]:
    """A line per name, of the settings that have a number and a draft."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in result.rows:
        value = row.setting.value
        if row.figures.tau.value and isinstance(value, int | float):
            lines.setdefault(row.setting.line, []).append((value, figure(row.figures)))
    return {name: sorted(points) for name, points in lines.items()}
