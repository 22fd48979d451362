"""`python -m benchmarks.quality`: measures a deployment's quality and writes the report."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.options import Verbose
from benchmarks.quality.problems import draw_tasks
from benchmarks.quality.report import write_report
from benchmarks.quality.results import collect
from benchmarks.quality.runner import Work, plan_work, run_work
from benchmarks.quality.settings import HARD, MAIN, Group, make_groups
from demo.tasks import Task
from fly.errors import ConfigError
from fly.response import DeploymentInfo
from flyserve.cli.bench import served_at
from flyserve.cli.terminal import messages, reported_errors
from flyserve.client import Client

_ROOT = Path(__file__).resolve().parent.parent.parent
_NAMES = ", ".join(group.name for group in make_groups())


def quality(
    address: Annotated[
        str | None,
        typer.Option(help="host:port of a running deployment; without it the demo is started and stopped."),
    ] = None,
    problems: Annotated[
        int, typer.Option(min=2, help="Held-out problems for the rules side by side.")
    ] = 3000,
    hard_problems: Annotated[int, typer.Option(min=2, help="Problems harder than trained on.")] = 1000,
    sweep_problems: Annotated[int, typer.Option(min=2, help="Problems for each value of a factor.")] = 300,
    only: Annotated[list[str] | None, typer.Option(help=f"Of {_NAMES}; may repeat.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 8,
    work: Annotated[
        Path, typer.Option(file_okay=False, help="Keeps every answer: a rerun sends only what is missing.")
    ] = _ROOT / "build" / "quality",
    output: Annotated[
        Path,
        typer.Option(
            file_okay=False, help="Where report, figures and charts go.", show_default="docs/benchmarks"
        ),
    ] = _ROOT / "docs" / "benchmarks",
    verbose: Verbose = False,
) -> None:
    """Measure what FLy costs in accuracy and gains in tokens per round.

    Every rule on thousands of held-out problems, the hard ones, and one factor at a time around the default:
    draft length, window, threshold, carrying, sub-drafter, temperature. An interrupted run goes on where it
    stopped; the report is written at the end.
    """
    counts = {MAIN: problems, HARD: hard_problems}
    with reported_errors("start a deployment with: flyserve up"):
        groups = [(group, _tasks(group, counts.get(group.name, sweep_problems))) for group in _chosen(only)]
        with served_at(address, verbose) as served, Client(served) as client:
            deployment = client.info()
            planned = plan_work(
                [(setting, tasks) for group, tasks in groups for setting in group.settings],
                work / _fingerprint(deployment),
            )
            _run(client, planned, concurrency)
        records = {each.setting.key: each.file.records for each in planned}
        path = write_report(collect(deployment, groups, records), output)
    messages().print(f"wrote {path}", markup=False)


def _chosen(only: Sequence[str] | None) -> list[Group]:
    known = [group.name for group in make_groups()]
    for name in only or ():
        if name not in known:
            raise ConfigError(f"--only: is {name!r}, must be one of {', '.join(known)}")
    return make_groups(only or ())


def _tasks(group: Group, count: int) -> list[Task]:
    return draw_tasks(group.settings[0].split, count)


def _fingerprint(deployment: DeploymentInfo) -> str:
    """Other weights give other answers: they are kept apart."""
    models = [model for model in (deployment.target, deployment.drafter) if model is not None]
    return "-".join(model.weight_fingerprint[:12] for model in models)


def _run(client: Client, planned: Sequence[Work], concurrency: int) -> None:
    total = sum(len(each.tasks) for each in planned)
    with _progress(messages(), total) as progress:
        bar = progress.add_task("", total=total)
        for number, each in enumerate(planned, start=1):
            progress.update(bar, description=f"setting {number} of {len(planned)}")
            run_work(client, each, concurrency, lambda: progress.advance(bar))


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not total) as progress:
        yield progress


if __name__ == "__main__":
    typer.run(quality)
