"""The report as tables for the terminal, Markdown, JSON and charts."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.machine import Machine
from benchmarks.soak.figures import WATCHED, Growth, Run, Watched, by_minutes, grown, growth
from benchmarks.soak.plan import Plan
from benchmarks.soak.system import REPLACED
from benchmarks.svg import Points, line_chart
from benchmarks.text_table import TextTable

_STEM = "soak"
_PARTS = 15
_CHARTS = ("memory_mb", "files", "tasks")
_INTRODUCTION = """\
# A long mixed load

A router, two targets, a drafter and a sub-drafter, each a process of its own, with simulated models (real
engines and sockets, no weights). Clients ask in every mode, greedily and sampled, for one choice and for
three, with stop strings and log-probabilities, for 8 to 400 tokens, over gRPC and HTTP. Some leave in the
middle, some have no time, some read slowly, some stop reading, some ask for what is rejected, and processes
with open streams are killed. So is `target-1`, again and again, and restarted at its address.

Every figure must be after the load what it was before, at rest, but for the slack: memory 5% or 2 MB, files
and tasks 1, threads 2, anything open 0. *First third* and *last third*: the medians under load. Answers that
do not depend on chance are compared: whatever was asked before, whoever died, they must be the same.
"""


@dataclass(frozen=True, slots=True)
class SoakReport:
    """Everything that one run found."""

    machine: Machine
    plan: Plan
    run: Run


def promised(run: Run) -> TextTable:
    """What must not happen, and how often it did."""
    wrong, failed = (sum(told.get(name, 0) for told in run.outcomes.values()) for name in ("wrong", "failed"))
    rows = (
        ("requests that failed", "0", str(failed)),
        ("answers that differ from an earlier one", "0", str(wrong)),
        ("figures that grew", "0", str(len(grown(run)))),
    )
    return TextTable("what was promised", ("promised", "bar", "measured"), rows)


def make_tables(report: SoakReport) -> Iterator[TextTable]:
    """What was promised, what was asked, then every figure."""
    yield promised(report.run)
    yield _outcomes(report.run)
    for watched in WATCHED:
        rows = tuple(_row(each, watched) for each in growth(report.run, watched))
        heads = ("", "before, at rest", "after, at rest", "first third", "last third", "most", "")
        yield TextTable(watched.title, heads, rows)


def write_report(report: SoakReport, folder: Path) -> Path:
    """Writes everything into a folder; the Markdown's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_STEM}.json").write_text(json.dumps(_data(report), indent=1) + "\n", encoding="utf-8")
    for name, chart in _charts(report.run).items():
        (folder / name).write_text(chart, encoding="utf-8")
    path = folder / f"{_STEM}.md"
    path.write_text("\n".join(_lines(report)), encoding="utf-8")
    return path


def _lines(report: SoakReport) -> Iterator[str]:
    plan, run = report.plan, report.run
    yield _INTRODUCTION
    yield f"Machine: {report.machine.describe()}\n"
    yield (
        f"`python -m benchmarks.soak`: {plan.load_s / 60:g} minutes of load after {plan.warm_up_s:g} s of the"
        f" same, {plan.clients} clients with pauses of up to {plan.think_s:g} s; a look at every process each"
        f" {plan.sample_s:g} s; `{REPLACED}` killed every {plan.replace_s:g} s, a client's process every"
        f" {plan.vanish_s:g} s. By the router's count: "
        + ", ".join(f"{number} {name}" for name, number in sorted(run.counted.items()))
        + ".\n"
    )
    tables = make_tables(report)
    yield from next(tables).markdown()
    yield from (f"\n- {fault}" for fault in (*grown(run), *run.faults))
    yield from (f"\n![{name}]({name})" for name in _charts(run))
    for table in tables:
        yield f"\n## {table.title}\n"
        yield from table.markdown()
    yield ""


def _outcomes(run: Run) -> TextTable:
    names = sorted({name for told in run.outcomes.values() for name in told})
    rows = tuple(
        (manner, *(str(told.get(name, 0)) for name in names)) for manner, told in run.outcomes.items()
    )
    return TextTable("What clients did, and what became of it", ("", *names), rows)


def _row(each: Growth, watched: Watched) -> tuple[str, ...]:
    figures = (each.before, each.after, each.first_third, each.last_third, each.most)
    verdict = "back" if each.is_back(watched) else "grown"
    return (each.process, *(f"{figure:.{watched.decimals}f}" for figure in figures), verdict)


def _charts(run: Run) -> dict[str, str]:
    """By file name: figures of every process over the minutes of the load."""
    titles = {watched.field: watched.title for watched in WATCHED}
    return {
        f"{_STEM}-{field.removesuffix('_mb')}.svg": line_chart(
            f"{titles[field]}, under load", "minutes", "medians", _series(run, field)
        )
        for field in _CHARTS
    }


def _series(run: Run, field: str) -> dict[str, Points]:
    processes = dict.fromkeys(sample.process for sample in run.loaded)
    return {
        name: [(round(minute, 1), value) for minute, value in by_minutes(run.loaded, name, field, _PARTS)]
        for name in processes
    }


def _data(report: SoakReport) -> dict[str, object]:
    """Samples thinned out to the points of the charts, for every figure."""
    run = report.run
    return {
        "machine": asdict(report.machine),
        "plan": asdict(report.plan),
        "outcomes": run.outcomes,
        "counted": run.counted,
        "faults": [*grown(run), *run.faults],
        "figures": {
            watched.field: {
                "growth": [
                    {**asdict(each), "is_back": each.is_back(watched)} for each in growth(run, watched)
                ],
                "minutes": _series(run, watched.field),
            }
            for watched in WATCHED
        },
    }
