"""The report of a scenario: a page in Markdown, charts, tables for the terminal, results as JSON."""

import json
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic_core import to_jsonable_python
from rich import box
from rich import table as rich_table

from benchmarks.harness.machine import Machine
from benchmarks.harness.statistics import Goal, Spread
from flyserve.bench.statistics import Interval

_WIDTH = 110
_BLANK = re.compile(r"\n\s*\n")
_HEADING = re.compile(r"^(#+ )", re.MULTILINE)
_PAGES = Environment(
    loader=FileSystemLoader(Path(__file__).parent.parent / "pages"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)

T = TypeVar("T")
TIMES, AROUND, AMONG = "{0.value:.2f}x", "{0.low:.2f} to {0.high:.2f}", "{0.least:.2f} to {0.most:.2f}"
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
        """Return a table of computed rows with the columns of the figures that at least one row has."""
        rows, columns = (
            list(rows),
            [(head, each.name, form) for each in figures for head, form in each.cells.items()],
        )
        columns = [each for each in columns if any(getattr(row, each[1]) is not None for row in rows)]
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
    """The results of a scenario, and the page that its template makes of them.

    The template is benchmarks/pages/NAME.md, in Jinja. It may use the plan, all other values,
    the functions `table`, `goals` and `chart`, and the filter `f` for format specifications. Paragraphs are
    wrapped to full lines; headings, tables, lists, quotes and pictures stay as they are.

    Attributes:
        name: Name of the scenario's files.
        tables: Tables for the terminal.
        charts: SVG by file name.
        data: Results for JSON: plain data, dataclasses, enums.
        faults: Failures that the command reports, and for which it ends with an error.
        is_published: The page may replace a published one.
    """

    def __init__(self, name: str, machine: Machine | None = None, plan: object = None, **data: Any) -> None:
        self.name = name
        self.tables: list[Table] = []
        self.charts: dict[str, str] = {}
        self.data: dict[str, Any] = {"machine": machine, "plan": plan, **data}
        self.faults: list[str] = []
        self.is_published = True
        self.page = ""
        self._template = f"{name}.md"

    @classmethod
    def joined(cls, name: str, title: str, plan: object, parts: Mapping[str, "Report"]) -> "Report":
        """Return the report of several parts, one after the other on one page."""
        report = cls(name, plan=plan, parts={part: each.data for part, each in parts.items()})
        sections = (_HEADING.sub(r"#\1", each.page) for each in parts.values())
        report.page = "\n".join((f"# {title}\n", *sections))
        for each in parts.values():
            report.tables += each.tables
            report.charts |= each.charts
            report.faults += each.faults
        return report

    def fill(self, **values: Any) -> "Report":
        """Fill the template in with the data, and with values that are no part of them."""
        functions = {"table": self.table, "goals": self.goals, "chart": self.chart}
        text = _PAGES.get_template(self._template).render({**self.data, **functions, **values})
        self.page = "\n\n".join(map(_wrapped, filter(None, _BLANK.split(text.strip())))) + "\n"
        return self

    def table(self, table: Table, shown: Collection[str] = (), title: bool = False) -> str:
        """Return a table in Markdown; the terminal shows the columns `shown`, or all of them.

        Args:
            table: At least one row, else nothing is returned.
            shown: Heads of the columns for the terminal.
            title: Put the table's title above it, as a heading.
        """
        if not table.rows:
            return ""
        self.tables.append(table.only(shown) if shown else table)
        return f"## {table.title}\n\n{table.markdown()}" if title else table.markdown()

    def goals(self, goals: Iterable[Goal]) -> str:
        """Return the table of goals, and add it to the data."""
        self.data["goals"] = rows = make_rows(_GOAL_FIGURES, goals)
        return self.table(Table.of("goals", _GOAL_FIGURES, rows))

    def chart(self, suffix: str, svg: str, alt: str) -> str:
        """Return the link of a chart, in the file `<name>-<suffix>.svg`, or `<name>.svg` without a suffix."""
        file = f"{self.name}-{suffix}.svg" if suffix else f"{self.name}.svg"
        self.charts[file] = svg
        return f"![{alt}]({file})"

    def write(self, pages: Path, results: Path) -> Path:
        """Write page and charts into one folder and the JSON into another; return the page's path.

        The page's first line has the commit, the date and the machine.
        """
        for folder in (pages, results):
            folder.mkdir(parents=True, exist_ok=True)
        data = json.dumps(to_jsonable_python(self.data, fallback=vars), indent=1)
        (results / f"{self.name}.json").write_text(data + "\n", encoding="utf-8")
        for file, svg in self.charts.items():
            (pages / file).write_text(svg, encoding="utf-8")
        path = pages / f"{self.name}.md"
        machine = self.data["machine"]
        first = f"Measured at {machine.describe()}\n\n" if machine else ""
        path.write_text(first + self.page, encoding="utf-8")
        return path


def listed(counts: Mapping[str, int]) -> str:
    """Return the counts with their names, in the order of the names."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _wrapped(block: str) -> str:
    if block.startswith(("#", "|", "!", "- ", "> ", "**", "```")):
        return block.rstrip()
    return textwrap.fill(block.strip(), _WIDTH, break_on_hyphens=False, break_long_words=False)


def _only(value: object, kind: type[T]) -> T | None:
    return value if isinstance(value, kind) else None


_PAGES.filters["f"] = format
_PAGES.globals["listed"] = listed
_GOAL_FIGURES: tuple[Figure[Goal], ...] = (
    Figure("name", lambda goal: goal.name, {"goal": "{}"}),
    Figure("limit", lambda goal: goal.limit),
    Figure("is_least", lambda goal: goal.is_least),
    Figure("bound", lambda goal: f"{'>=' if goal.is_least else '<='} {goal.limit:.2f}x", {"limit": "{}"}),
    Figure("measured", lambda goal: goal.measured.value, {"measured": "{:.2f}x"}),
    Figure("interval", lambda goal: _only(goal.measured, Interval), {"95% interval": AROUND}),
    Figure("spread", lambda goal: _only(goal.measured, Spread), {"least to most": AMONG}),
    Figure("verdict", lambda goal: goal.verdict, {"": "{}"}),
)
