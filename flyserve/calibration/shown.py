"""The tables, the notes and the chart of a calibration. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from rich import box
from rich.cells import cell_len
from rich.table import Table

from flyserve.calibration.candidate import listed
from flyserve.calibration.frontier import Row, frontier, worst

_WIDTH, _HEIGHT, _MARGIN = 760, 460, 64
_TICKS = 5


def tables(rows: Sequence[Row], num_prompts: int) -> Iterator[Table]:
    """Yield a table of speed and divergence and, if responses were judged, one of accuracy.

    Both have all rows, the slowest first; a star marks the frontier.
    """
    ordered = sorted(rows, key=lambda row: row.tokens_per_round)
    front = frontier(rows)
    names = [f"{'*' if row in front else ' '} {row.candidate.name}" for row in ordered]
    yield _table(
        f"{num_prompts} prompts",
        ("tokens/round", "nats/100", "rescued", "same text"),
        {name: _cells(row) for name, row in zip(names, ordered, strict=True)},
    )
    if families := [*rows[0].accuracy]:
        yield _table(
            "accuracy",
            (*(family or "all" for family in families), "lost/gained"),
            {name: _accuracies(row) for name, row in zip(names, ordered, strict=True)},
        )


def _table(title: str, columns: Sequence[str], cells: Mapping[str, Iterator[str]]) -> Table:
    """Return a table that a narrow console does not crop: its lines run over."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    lines = [("rule", *columns), *((name, *values) for name, values in cells.items())]
    for number, column in enumerate(zip(*lines, strict=True)):
        widest = max(map(cell_len, column))
        table.add_column(column[0], justify="right" if number else "left", no_wrap=True, min_width=widest)
    for line in lines[1:]:
        table.add_row(*line)
    return table


def _cells(row: Row) -> Iterator[str]:
    yield f"{row.tokens_per_round:.2f}"
    yield f"{row.divergence:.2f}"
    yield f"{row.rescued:.2%}"
    yield f"{row.same:.0%}"


def _accuracies(row: Row) -> Iterator[str]:
    yield from (f"{value:.1%}" for value in row.accuracy.values())
    yield f"{row.lost} / {row.gained}"


def notes(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the explanation of what the table cannot show."""
    yield "*: no other rule has both more tokens per round and a smaller loss"
    yield "nats/100: how much less likely the target finds the rescued tokens than its own, per 100 tokens"
    if replayed := [row.candidate.name for row in rows if not row.candidate.is_served]:
        yield f"replayed only, no deployment serves them: {listed(replayed)}"
    if not rows[0].accuracy:
        yield "no accuracy: add answers to the prompts, or give a --verifier"


def frontier_chart(rows: Sequence[Row]) -> str:
    """Return an SVG of loss against tokens per round: of accuracy in the worst family, or of nats.

    Nats stand for accuracy where no rule differs in it.
    """
    judged = bool(rows[0].accuracy) and len({worst(row) for row in rows}) > 1
    points = [(row.tokens_per_round, 100 * worst(row) if judged else -row.divergence, row) for row in rows]
    xs, ys = [x for x, _, _ in points], [y for _, y, _ in points]
    x_at, y_at = _scale(xs, _MARGIN, _WIDTH - _MARGIN), _scale(ys, _HEIGHT - _MARGIN, _MARGIN)
    label = "accuracy kept in the worst family, %" if judged else "divergence, nats per 100 tokens (negative)"
    front = sorted((x_at(row.tokens_per_round), y_at(y)) for _, y, row in points if row in frontier(rows))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *(_tick(x_at(x), _HEIGHT - _MARGIN + 18, f"{x:.1f}", "middle") for x in _ticks(xs)),
        *(_tick(_MARGIN - 8, y_at(y) + 4, f"{y:.1f}", "end") for y in _ticks(ys)),
        _tick(_WIDTH / 2, _HEIGHT - 16, "tokens per round", "middle"),
        _tick(8, 16, label, "start"),
        f'<polyline fill="none" stroke="#2a6" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in front)}"/>',
    ]
    for x, y, row in points:
        name, at = row.candidate.name, (x_at(x), y_at(y))
        colour = "#26a" if row.candidate.is_served else "#aaa"
        parts.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4" fill="{colour}"/>')
        # NOTE: names of rules side by side would overlap; slanted they do not.
        slant = f"rotate(-35 {at[0]:.1f} {at[1]:.1f})"
        parts.append(f'<g transform="{slant}">{_tick(at[0] + 8, at[1] + 4, name, "start")}</g>')
    return "\n".join([*parts, "</svg>\n"])


def _scale(values: Sequence[float], first: float, last: float) -> "_Scale":
    return _Scale(min(values), max(values), first, last)


class _Scale:
    """A linear map from values to places of the chart."""

    def __init__(self, least: float, most: float, first: float, last: float) -> None:
        self._least, self._span = least, (most - least) or 1.0
        self._first, self._length = first, last - first

    def __call__(self, value: float) -> float:
        return self._first + self._length * (value - self._least) / self._span


def _ticks(values: Sequence[float]) -> list[float]:
    least, most = min(values), max(values)
    return sorted({least + (most - least) * index / (_TICKS - 1) for index in range(_TICKS)})


def _tick(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
