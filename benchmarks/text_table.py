"""A table of text: once for the terminal, once for Markdown."""

from collections.abc import Iterator
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

    def rich(self) -> Table:
        """For the terminal."""
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE)
        for index, head in enumerate(self.heads):
            table.add_column(head, justify="right" if index else "left")
        for row in self.rows:
            table.add_row(*row)
        return table
