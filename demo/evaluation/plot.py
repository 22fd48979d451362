"""A plain SVG of the training losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log10

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 300, 52, 36, 16, 96
_COLOURS = ("#2a6fb0", "#c4622d", "#3c8d53")
Curve = Sequence[tuple[int, float]]


def loss_plot(curves: Mapping[str, Curve]) -> str:
    """Draw each curve over the share of its training done, the loss on a logarithmic axis."""
    losses = [loss for curve in curves.values() for _, loss in curve]
    low, high = log10(min(losses)), log10(max(losses))
    marks = [_grid_line(value, low, high) for value in _round_values(low, high)]
    lines = [
        _line(name, curve, low, high, _COLOURS[number % len(_COLOURS)], number)
        for number, (name, curve) in enumerate(curves.items())
    ]
    caption = _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 8, "share of training done", "middle")
    ends = [_text(_x(share), _HEIGHT - 22, f"{share:.0%}", "middle") for share in (0.0, 0.5, 1.0)]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *marks, *lines, *ends, caption, "</svg>"]) + "\n"


def _round_values(low: float, high: float) -> list[float]:
    decades = range(floor(low), floor(high) + 1)
    values = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    return [value for value in values if low <= log10(value) <= high]


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(loss: float, low: float, high: float) -> float:
    return _TOP + (high - log10(loss)) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def _grid_line(value: float, low: float, high: float) -> str:
    y = _y(value, low, high)
    line = f'<line x1="{_x(0):.1f}" x2="{_x(1):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
    return line + _text(_LEFT - 6, y + 4, f"{value:g}", "end")


def _line(name: str, curve: Curve, low: float, high: float, colour: str, number: int) -> str:
    last = curve[-1][0]
    points = " ".join(f"{_x(step / last):.1f},{_y(loss, low, high):.1f}" for step, loss in curve)
    label = _text(_x(1) + 8, _TOP + 14 * (number + 1), name, "start", colour)
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>{label}'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#444") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
