"""The progress bar of a benchmark, with the remaining time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[], None]


@contextmanager
def progress_bar(console: Console, total: int, label: str = "requests") -> Iterator[Advance]:
    """Show a bar while the block runs, on a terminal alone.

    The block calls the yielded function after each of `total` steps.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    is_shown = bool(total) and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as progress:
        bar = progress.add_task(label, total=total)
        yield lambda: progress.advance(bar)
