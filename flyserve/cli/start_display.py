"""The lines that a person sees while models are fetched and a deployment starts: one for each replica."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.progress import (
    DownloadColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.spinner import Spinner
from rich.table import Table

from flyserve.signals import stop_signals

if TYPE_CHECKING:
    from orchestration.control.status import ReplicaStatus

Show = Callable[["Sequence[ReplicaStatus]"], None]
"""Show the state of every replica; called whenever it changes."""

_BEGINNING = ("Ray", "starting, with the controller")


@contextmanager
def start_display(console: Console) -> Iterator[tuple[Show, Callable[[], None]]]:
    """Yield a function that shows the replicas as they start, and one that removes the display.

    It has a line for each replica: its name, its state, and the seconds since the start. A signal removes it
    as well. Only a terminal shows it.
    """
    lines = _Lines()
    live = Live(lines, console=console, transient=True, refresh_per_second=5)
    if not console.is_terminal:
        yield lines.show, lambda: None
        return
    with live:
        yield lines.show, live.stop


@contextmanager
def download_display(console: Console, name: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows the bytes of a download that have arrived, of all, and the time left.

    Nothing is shown before the first call: a model that is on this machine is not fetched.
    """
    columns = (
        TaskProgressColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        tasks: list[TaskID] = []

        def report(done: int, total: int) -> None:
            if not tasks:
                console.print(f"fetching {name}: {total / 1e9:.2f} GB", markup=False)
                tasks.append(progress.add_task("", total=total))
            (task,) = tasks
            progress.update(task, completed=max(done, progress.tasks[0].completed), total=total)

        yield report


def row(replica: "ReplicaStatus") -> tuple[str, str]:
    """Return the name of a replica and its state, such as `loading weights 41%`."""
    return replica.replica, replica.detail or replica.state.value


class _Lines:
    """The lines at present; rendered several times a second."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, str]] = [_BEGINNING]
        self._spinner = Spinner("dots")
        self._start = time.monotonic()

    def show(self, replicas: "Sequence[ReplicaStatus]") -> None:
        self._rows = [row(replica) for replica in replicas] or [_BEGINNING]

    def __rich__(self) -> Table:
        table = Table.grid(padding=(0, 1))
        if stop_signals.first is not None:
            table.add_row(self._spinner, "stopping")
            return table
        seconds = f"{time.monotonic() - self._start:.0f} s"
        for name, state in self._rows:
            is_ready = state == "ready"
            table.add_row("" if is_ready else self._spinner, name, state, "" if is_ready else seconds)
        return table
