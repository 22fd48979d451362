"""Plain, exact, FLy, FLy with sub-drafter: the shipped tasks through gRPC, interleaved problem by problem."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from uuid import uuid4

from rich.console import Console

from benchmarks.interleaving import rotated
from benchmarks.progress import Advance, progress_bar
from benchmarks.settings import BASELINE, SETTINGS
from benchmarks.summary import Measurement, Summary, summarize_all
from demo.tasks import Task
from demo.tokenizer import render
from flyserve.client import Client

_TIMEOUT_S = 120.0
_MAX_NEW_TOKENS = 512
_WARM_UPS = 2


def compare(client: Client, tasks: Sequence[Task], advance: Advance) -> dict[str, list[Measurement]]:
    """Measures every task under every setting, after warm-up requests.

    Each setting has a cache salt of its own, so that none profits from what another has made the servers
    remember of the same task.

    Args:
        client: To a running deployment.
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


def num_requests(num_tasks: int) -> int:
    """Requests of a comparison, warm-up included."""
    return (num_tasks + min(num_tasks, _WARM_UPS)) * len(SETTINGS)


def measure(client: Client, task: Task, setting: str, cache_salt: str) -> Measurement:
    """One task under one setting, greedily."""
    start = time.perf_counter()
    response = client.generate(
        render(task.prompt),
        _MAX_NEW_TOKENS,
        speculation=SETTINGS[setting],
        timeout_s=_TIMEOUT_S,
        cache_salt=cache_salt,
    )
    seconds = time.perf_counter() - start
    return Measurement(task.id, seconds, task.is_solved_by(response.text), response.statistics)


def run(client: Client, tasks: Sequence[Task], console: Console) -> tuple[list[Summary], dict[str, object]]:
    """Compares with a progress bar; the summaries, and all measurements as plain data for JSON."""
    with progress_bar(console, num_requests(len(tasks))) as advance:
        runs = compare(client, tasks, advance)
    summaries = summarize_all(runs, BASELINE)
    report: dict[str, object] = {
        "summaries": [asdict(summary) for summary in summaries],
        "measurements": {setting: [asdict(run) for run in measured] for setting, measured in runs.items()},
    }
    return summaries, report


def write_report(report: dict[str, object], path: Path) -> None:
    """Writes the report as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
