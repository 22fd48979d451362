"""Plain, exact, FLy, FLy with sub-drafter: the shipped tasks, interleaved task by task."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from rich.console import Console

from fly.request import SpeculationParams
from fly.response import Statistics
from fly.types import Mode
from flyserve.bench.progress import Advance, progress_bar
from flyserve.bench.summary import Summary, summarize
from flyserve.bench.tasks import Task, render
from flyserve.client import Client

BASELINE = "plain"
SETTINGS = {
    BASELINE: SpeculationParams(mode=Mode.PLAIN),
    "exact": SpeculationParams(mode=Mode.EXACT, sub_drafter=False),
    "FLy": SpeculationParams(mode=Mode.FLY, sub_drafter=False),
    "FLy + sub-drafter": SpeculationParams(mode=Mode.FLY, sub_drafter=True),
}
"""The ways of decoding by name, in the order of the table."""
_TIMEOUT_S = 120.0
_MAX_NEW_TOKENS = 512
_WARM_UPS = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One task under one setting.

    Attributes:
        problem: The task's id.
        seconds: Time from the call to the whole response, as the client sees it.
        is_solved: True if the response ends with the right answer.
        statistics: Statistics as the server reports them.
    """

    problem: str
    seconds: float
    is_solved: bool
    statistics: Statistics


def compare(client: Client, tasks: Sequence[Task], advance: Advance) -> dict[str, list[Measurement]]:
    """Measure every task under every setting, after warm-up requests.

    Each setting has its own cache salt, so no setting profits from what the servers cached for another.

    Args:
        client: Connected to a running deployment.
        tasks: At least one.
        advance: Called after each request; there are `num_requests`.

    Raises:
        FlyServeError: The deployment rejected a request.
    """
    salt = uuid4().hex
    for task in tasks[:_WARM_UPS]:
        for setting in SETTINGS:
            measure(client, task, setting, f"{salt}/warm-up")
            advance()
    runs: dict[str, list[Measurement]] = {setting: [] for setting in SETTINGS}
    for index, task in enumerate(tasks):
        for setting in rotated(tuple(SETTINGS), index):
            runs[setting].append(measure(client, task, setting, f"{salt}/{setting}"))
            advance()
    return runs


def rotated(names: Sequence[T], turn: int) -> list[T]:
    """Return the order of one turn: each turn starts one later, so that drift affects all names alike."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def num_requests(num_tasks: int) -> int:
    """Return the number of requests of a comparison, warm-up included."""
    return (num_tasks + min(num_tasks, _WARM_UPS)) * len(SETTINGS)


def measure(client: Client, task: Task, setting: str, cache_salt: str) -> Measurement:
    """Send one task under one setting, with greedy decoding."""
    start = time.perf_counter()
    response = client.generate(
        render(task.prompt),
        _MAX_NEW_TOKENS,
        speculation=SETTINGS[setting],
        timeout_s=_TIMEOUT_S,
        cache_salt=cache_salt,
    )
    return Measurement(
        problem=task.id,
        seconds=time.perf_counter() - start,
        is_solved=task.is_solved_by(response.text),
        statistics=response.statistics,
    )


def run(client: Client, tasks: Sequence[Task], console: Console) -> tuple[list[Summary], dict[str, object]]:
    """Compare with a progress bar; return the summaries, and all measurements as plain data for JSON."""
    with progress_bar(console, num_requests(len(tasks))) as advance:
        runs = compare(client, tasks, advance)
    summaries = [summarize(setting, measured, runs[BASELINE]) for setting, measured in runs.items()]
    report: dict[str, object] = {
        "summaries": [asdict(summary) for summary in summaries],
        "measurements": {setting: [asdict(run) for run in measured] for setting, measured in runs.items()},
    }
    return summaries, report


def write_report(report: dict[str, object], path: Path) -> None:
    """Write the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
