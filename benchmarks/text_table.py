"""A table of text: once for the terminal, once for Markdown."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from rich import box
from rich.table import Table


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of text; its first column names the rows."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> Iterator[str]:
        """Its lines."""
        yield f"| {' | '.join(self.heads)} |"
        yield f"|{'---|' * len(self.heads)}"
        for row in self.rows:
            yield f"| {' | '.join(row)} |"

    def only(self, heads: Collection[str]) -> "TextTable":
        """Some of its columns, the first among them: as many as fit a terminal."""
        kept = [index for index, head in enumerate(self.heads) if not index or head in heads]
        rows = tuple(tuple(row[index] for index in kept) for row in self.rows)
        return TextTable(self.title, tuple(self.heads[index] for index in kept), rows)

    def rich(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE)
        for index, head in enumerate(self.heads):
            table.add_column(head, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        return table
