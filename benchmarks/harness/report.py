"""The report of a scenario: a page in Markdown, charts, tables for the terminal, results as JSON."""

import json
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from pydantic_core import to_jsonable_python
from rich import box
from rich import table as rich_table

from benchmarks.harness.machine import Machine
from benchmarks.harness.statistics import Goal
from flyserve.bench.statistics import Interval

_WIDTH = 110

T = TypeVar("T")
TIMES, AROUND = "{0.value:.2f}x", "{0.low:.2f} to {0.high:.2f}"
"""Cells of an interval: its value as a ratio, and its ends."""


@dataclass(frozen=True, slots=True)
class Figure(Generic[T]):
    """One figure of every row of a result: in the JSON, and in columns of a table.

    Attributes:
        name: Key in the JSON.
        compute: Function from the measurements of a row to the figure: plain data or a dataclass.
        cells: Format of the figure by the head of its column; None is shown as "-". Empty: only in the JSON.
    """

    name: str
    compute: Callable[[T], Any]
    cells: Mapping[str, str | Callable[[Any], str]] = field(default_factory=dict)


class Row(SimpleNamespace):
    """The figures of one row by their names."""


def make_rows(figures: Iterable[Figure[T]], items: Iterable[T]) -> list[Row]:
    """Compute all figures of each item."""
    figures = tuple(figures)
    return [Row(**{figure.name: figure.compute(item) for figure in figures}) for item in items]


def _cell(form: str | Callable[[Any], str], value: Any) -> str:
    if value is None:
        return "-"
    return form.format(value) if isinstance(form, str) else form(value)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text; its first column names the rows."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, title: str, figures: Iterable[Figure[Any]], rows: Iterable[Row]) -> "Table":
        """Return a table of computed rows with the columns of the figures."""
        columns = [(head, each.name, form) for each in figures for head, form in each.cells.items()]
        cells = (tuple(_cell(form, getattr(row, name)) for _, name, form in columns) for row in rows)
        return cls(title, tuple(head for head, _, _ in columns), tuple(cells))

    def markdown(self) -> str:
        """Return the table in Markdown."""
        head, *rows = (f"| {' | '.join(line)} |" for line in (self.heads, *self.rows))
        return "\n".join((head, f"|{'---|' * len(self.heads)}", *rows))

    def only(self, heads: Collection[str]) -> "Table":
        """Return the first column and the named ones: as many as fit a terminal."""
        kept = [index for index, head in enumerate(self.heads) if not index or head in heads]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        return Table(self.title, tuple(self.heads[index] for index in kept), rows)

    def rich(self) -> rich_table.Table:
        """Return the table for the terminal."""
        table = rich_table.Table(title=self.title, title_justify="left", box=box.SIMPLE)
        for index, head in enumerate(self.heads):
            table.add_column(head, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        return table


class Report:
    """A report under construction: each method adds one block to the page.

    Attributes:
        name: Name of the scenario and of its files.
        tables: Tables for the terminal.
        charts: SVG by file name.
        data: Results for JSON: plain data, dataclasses, enums.
        faults: Failures that the command reports, and for which it ends with an error.
    """

    def __init__(self, name: str, machine: Machine | None = None, plan: Any = None, **data: Any) -> None:
        self.name = name
        self.tables: list[Table] = []
        self.charts: dict[str, str] = {}
        self.data: dict[str, Any] = {"machine": machine, "plan": plan, **data}
        self.faults: list[str] = []
        self._machine = machine
        self._blocks: list[str] = []

    @property
    def page(self) -> str:
        """The page in Markdown."""
        return "\n\n".join(self._blocks) + "\n"

    def introduction(self, title: str, text: str) -> None:
        """Add the title, the first paragraphs, and the machine."""
        self.heading(title, level=1)
        self.text(text)
        if self._machine is not None:
            self._blocks.append(f"Machine: {self._machine.describe()}")

    def heading(self, title: str, level: int = 2) -> None:
        """Add a heading."""
        self._blocks.append(f"{'#' * level} {title}")

    def text(self, text: str) -> None:
        """Add paragraphs, wrapped to full lines."""
        paragraphs = text.strip().split("\n\n")
        self._blocks += [
            textwrap.fill(part, _WIDTH, break_on_hyphens=False, break_long_words=False) for part in paragraphs
        ]

    def verbatim(self, lines: Iterable[str]) -> None:
        """Add lines of Markdown as they are."""
        self._blocks.append("\n".join(lines))

    def table(self, table: Table, shown: Collection[str] = (), title: bool = False) -> None:
        """Add a table; the terminal shows the columns `shown`, or all of them.

        Args:
            table: At least one row, else nothing is added.
            shown: Heads of the columns for the terminal.
            title: Put the table's title above it, as a heading.
        """
        if table.rows:
            if title:
                self.heading(table.title)
            self._blocks.append(table.markdown())
            self.tables.append(table.only(shown) if shown else table)

    def goals(self, goals: Sequence[Goal]) -> None:
        """Add the table of goals; it is also part of the data."""
        self.data["goals"] = rows = make_rows(_GOAL_FIGURES, goals)
        self.table(Table.of("goals", _GOAL_FIGURES, rows))

    def chart(self, suffix: str, svg: str, alt: str = "") -> None:
        """Add a chart, in the file `<name>-<suffix>.svg`, or `<name>.svg` if the suffix is empty."""
        file = f"{self.name}-{suffix}.svg" if suffix else f"{self.name}.svg"
        self.charts[file] = svg
        self._blocks.append(f"![{alt or file}]({file})")

    def write(self, pages: Path, results: Path) -> Path:
        """Write page and charts into one folder and the JSON into another; return the page's path."""
        for folder in (pages, results):
            folder.mkdir(parents=True, exist_ok=True)
        data = json.dumps(to_jsonable_python(self.data, fallback=vars), indent=1)
        (results / f"{self.name}.json").write_text(data + "\n", encoding="utf-8")
        for file, svg in self.charts.items():
            (pages / file).write_text(svg, encoding="utf-8")
        path = pages / f"{self.name}.md"
        path.write_text(self.page, encoding="utf-8")
        return path


def times(ratio: float) -> str:
    """Return a ratio as text."""
    return f"{ratio:.2f}x"


def around(interval: Interval, form: str = ".2f") -> str:
    """Return the ends of an interval as text."""
    return f"{interval.low:{form}} to {interval.high:{form}}"


def listed(counts: Mapping[str, int]) -> Iterator[str]:
    """Yield `number name` in the order of the names."""
    yield from (f"{count} {name}" for name, count in sorted(counts.items()))


_GOAL_FIGURES: tuple[Figure[Goal], ...] = (
    Figure("name", lambda goal: goal.name, {"goal": "{}"}),
    Figure("limit", lambda goal: goal.limit),
    Figure("is_least", lambda goal: goal.is_least),
    Figure("bound", lambda goal: f"{'>=' if goal.is_least else '<='} {times(goal.limit)}", {"limit": "{}"}),
    Figure("measured", lambda goal: goal.measured, {"measured": TIMES, "95% interval": AROUND}),
    Figure("verdict", lambda goal: goal.verdict, {"": "{}"}),
)
