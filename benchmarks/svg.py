"""Charts as plain SVG, without a library."""

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 130, 34, 44
_COLOURS = ("#2a6fb0", "#c4622d", "#3c8d53", "#8b5fb0", "#777777")
_MARKS = 5
_BAR_LEFT, _BAR_ROOM, _BAR_STEP, _BAR_HEIGHT = 190, 60, 24, 16


def line_chart(
    title: str, x_label: str, y_label: str, lines: Mapping[str, Points], is_logarithmic: bool = False
) -> str:
    """Every line through its points, on axes that hold them all.

    Args:
        title: Above the chart.
        x_label: Below the horizontal axis.
        y_label: Above the vertical axis.
        lines: Points by name, at least one in all, in ascending order of x.
        is_logarithmic: Of the horizontal axis; every x is then above 0.
    """
    points = [point for line in lines.values() for point in line]
    scale = math.log if is_logarithmic else float
    xs, ys = _Axis([scale(x) for x, _ in points], 0.0), _Axis([y for _, y in points], 0.08)
    parts = [_text(_LEFT, 16, title, "start", "#222", 13), _text(_LEFT, 30, y_label, "start")]
    parts += [_horizontal(value, ys) for value in ys.marks()]
    parts += [
        _text(_x(scale(x), xs), _HEIGHT - _BOTTOM + 16, f"{x:g}", "middle")
        for x in sorted({x for x, _ in points})
    ]
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, x_label, "middle"))
    for number, (name, line) in enumerate(lines.items()):
        parts.append(_line(name, [(_x(scale(x), xs), _y(y, ys)) for x, y in line], number))
    return _document(_HEIGHT, parts)


def bar_chart(title: str, unit: str, bars: Mapping[str, tuple[float, float, float]]) -> str:
    """Horizontal bars from 0, each with its value and a whisker from its least to its greatest.

    Args:
        title: Above the chart.
        unit: Of the values.
        bars: (value, least, greatest) by name, at least one.
    """
    most = max(greatest for _, _, greatest in bars.values()) or 1.0
    height = _TOP + _BAR_STEP * len(bars) + 10
    parts = [_text(_BAR_LEFT, 18, f"{title}, {unit}", "start", "#222", 13)]
    for number, (name, bar) in enumerate(bars.items()):
        value, least, greatest = (
            _BAR_LEFT + figure / most * (_WIDTH - _BAR_LEFT - _BAR_ROOM) for figure in bar
        )
        y = _TOP + _BAR_STEP * number
        middle = y + _BAR_HEIGHT / 2
        parts.append(_text(_BAR_LEFT - 8, middle + 4, name, "end"))
        parts.append(
            f'<rect x="{_BAR_LEFT}" y="{y}" width="{value - _BAR_LEFT:.1f}" height="{_BAR_HEIGHT}"'
            f' fill="{_COLOURS[0]}"/>'
        )
        parts.append(
            f'<line x1="{least:.1f}" x2="{greatest:.1f}" y1="{middle}" y2="{middle}" stroke="#222"/>'
        )
        parts.append(_text(greatest + 6, middle + 4, f"{bar[0]:.4g}", "start"))
    return _document(height, parts)


def _document(height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


class _Axis:
    """The range of one axis, with some room at both ends."""

    def __init__(self, values: Sequence[float], room: float) -> None:
        spread = max(values) - min(values) or abs(values[0]) or 1.0
        self.low = min(values) - room * spread
        self.high = max(values) + room * spread
        if self.high == self.low:
            self.high += 1.0

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[float]:
        step = (self.high - self.low) / (_MARKS - 1)
        return [self.low + number * step for number in range(_MARKS)]


def _x(value: float, axis: _Axis) -> float:
    return _LEFT + axis.share(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, axis: _Axis) -> float:
    return _HEIGHT - _BOTTOM - axis.share(value) * (_HEIGHT - _TOP - _BOTTOM)


def _horizontal(value: float, axis: _Axis) -> str:
    y = _y(value, axis)
    line = f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
    return line + _text(_LEFT - 6, y + 4, f"{value:.4g}", "end")


def _line(name: str, points: Points, number: int) -> str:
    colour = _COLOURS[number % len(_COLOURS)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)
    label = _text(_WIDTH - _RIGHT + 10, _TOP + 12 + 15 * number, name, "start", colour)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>{dots}{label}'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#444", size: int = 11) -> str:
    position = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {position} fill="{colour}" font-size="{size}">{escape(text)}</text>'
