"""How far the start of a deployment has come: a bar on a terminal, nothing elsewhere."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Task

    from orchestration.control.status import ReplicaStatus

Show = Callable[["Sequence[ReplicaStatus]"], None]
"""Told the state of every replica, whenever there is news."""

_BEGINNING = "starting Ray and the controller"


@contextmanager
def start_progress(console: Console, timeout_s: float) -> Iterator[tuple[Show, Callable[[], None]]]:
    """What shows the replicas as they come up, and what ends it.

    Args:
        console: Where to.
        timeout_s: After which the start is given up: the time that is left at most.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, _TimeLeft(timeout_s), console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(_BEGINNING, total=None)

        def show(replicas: "Sequence[ReplicaStatus]") -> None:
            ready = sum(replica.state.value == "ready" for replica in replicas)
            progress.update(bar, description=summary(replicas), total=len(replicas) or None, completed=ready)

        yield show, progress.stop


class _TimeLeft(TextColumn):
    """How long the start may still take."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__("")
        self._timeout_s = timeout_s

    def render(self, task: "Task") -> Text:
        left_s = max(0.0, self._timeout_s - (task.elapsed or 0.0))
        return Text(f"at most {left_s:.0f} s left", style="progress.remaining")


def summary(replicas: "Sequence[ReplicaStatus]") -> str:
    """How many replicas of each tier are ready, such as `starting drafter 0/1, target 1/2`."""
    desired = Counter(replica.role.value for replica in replicas)
    ready = Counter(replica.role.value for replica in replicas if replica.state.value == "ready")
    told = ", ".join(f"{role} {ready[role]}/{count}" for role, count in sorted(desired.items()))
    return f"starting {told}" if told else _BEGINNING
