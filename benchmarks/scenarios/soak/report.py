"""The samples of a run, their growth from rest to rest, and the report. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import Points, line_chart
from benchmarks.harness.report import Figure, Report, Row, Table, make_rows
from benchmarks.scenarios.soak.requests import Plan

_PARTS = 15
_CHARTS = ("memory_mb", "files", "tasks")


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of one process.

    Attributes:
        at_s: Seconds since the load began, without the warm-up.
        memory_mb: Resident memory.
        files: Open file descriptors.
        tasks: Tasks of its event loop.
        open: Open requests of a router, open sequences of a service.
        kv_tokens: KV positions of open sequences.
    """

    process: str
    at_s: float
    memory_mb: float
    files: int
    threads: int
    tasks: int
    open: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Watched:
    """A figure of every process that must not grow.

    Attributes:
        field: Field of the sample.
        slack: Allowed growth from before the load to after it.
        slack_share: The same, as a share of the figure before the load.
    """

    title: str
    field: str
    slack: float = 0.0
    slack_share: float = 0.0
    decimals: int = 0


WATCHED = (
    Watched("Resident memory, MB", "memory_mb", 2.0, 0.05, 1),
    Watched("File descriptors", "files", 1.0),
    Watched("Threads", "threads", 2.0),
    Watched("Tasks of the event loop", "tasks", 1.0),
    Watched("Open sequences (router: requests)", "open"),
    Watched("KV positions in use", "kv_tokens"),
)


@dataclass(frozen=True, slots=True)
class Run:
    """Everything measured in one run.

    Attributes:
        before: Samples at rest, after the warm-up.
        loaded: Samples under load, in their order.
        after: Samples at rest, after the load.
        outcomes: Requests by the client's behaviour and their outcome.
        counted: Requests by outcome, as the router counts them.
        faults: Errors that must not happen.
    """

    before: Sequence[Sample]
    loaded: Sequence[Sample]
    after: Sequence[Sample]
    outcomes: Mapping[str, Mapping[str, int]]
    counted: Mapping[str, int]
    faults: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """One watched figure.

    Attributes:
        growth: Its growth, process by process.
        minutes: Points (minute, median) under load, by process.
    """

    growth: Sequence[Row]
    minutes: Mapping[str, Points]


Figures = Mapping[str, Course]
"""Figures by the field of the samples."""


def summarize(run: Run) -> Figures:
    """Return every watched figure."""
    processes = dict.fromkeys(sample.process for sample in run.loaded)
    return {
        watched.field: Course(
            growth=growth(run, watched),
            minutes={name: by_minutes(run.loaded, name, watched.field, _PARTS) for name in processes},
        )
        for watched in WATCHED
    }


Values = tuple[str, list[float], list[float], list[float]]
"""A process, and one figure of it: at rest after the warm-up, under load, and at rest after the load."""


def growth(run: Run, watched: Watched) -> list[Row]:
    """Return one figure of every process, in the order of the samples."""
    phases = (run.before, run.loaded, run.after)
    found: dict[str, tuple[list[float], ...]] = {each.process: ([], [], []) for each in run.before}
    for number, phase in enumerate(phases):
        for sample in (each for each in phase if each.process in found):
            found[sample.process][number].append(float(getattr(sample, watched.field)))
    return make_rows(_figures(watched), [(name, *values) for name, values in found.items()])


def _figures(watched: Watched) -> Sequence[Figure[Any]]:
    form = f"{{:.{watched.decimals}f}}"

    def is_back(values: Values) -> bool:
        before, after = median(values[1]), median(values[3])
        return after <= before + max(watched.slack, watched.slack_share * before)

    return (
        Figure("process", lambda v: v[0], {"": "{}"}),
        Figure("before", lambda v: median(v[1]), {"before, at rest": form}),
        Figure("after", lambda v: median(v[3]), {"after, at rest": form}),
        Figure("first_third", lambda v: median(v[2][: _third(v[2])]), {"first third": form}),
        Figure("last_third", lambda v: median(v[2][-_third(v[2]) :]), {"last third": form}),
        Figure("most", lambda v: max(v[2]), {"most": form}),
        Figure("is_back", is_back, {"": lambda is_back: "back" if is_back else "grown"}),
    )


def _third(values: Sequence[float]) -> int:
    return max(1, len(values) // 3)


def grown(figures: Figures) -> list[str]:
    """Return a sentence for every figure that has grown."""
    return [
        f"{each.process}: {watched.title} {each.before:.1f} before, {each.after:.1f} after"
        for watched in WATCHED
        for each in figures[watched.field].growth
        if not each.is_back
    ]


def by_minutes(samples: Sequence[Sample], process: str, field: str, parts: int) -> Points:
    """Return (minute at its middle, median) of each of `parts` equal parts that has a sample."""
    own = [sample for sample in samples if sample.process == process]
    end_s = max(sample.at_s for sample in samples) or 1.0
    found: dict[int, list[float]] = {}
    for sample in own:
        part = min(parts - 1, int(parts * max(0.0, sample.at_s) / end_s))
        found.setdefault(part, []).append(getattr(sample, field))
    return [(round((part + 0.5) / parts * end_s / 60, 1), median(found[part])) for part in sorted(found)]


def make_report(machine: Machine, plan: Plan, run: Run) -> Report:
    """Return the report; its data have the points of the charts for every figure."""
    figures = summarize(run)
    faults = [*grown(figures), *run.faults]
    charts = []
    for watched in (each for each in WATCHED if each.field in _CHARTS):
        chart = line_chart(
            f"{watched.title}, under load", "minutes", "medians", figures[watched.field].minutes
        )
        charts.append((watched.field.removesuffix("_mb"), watched.title, chart))
    report = Report(
        "soak", machine, plan, outcomes=run.outcomes, counted=run.counted, faults=faults, figures=figures
    )
    return report.fill(
        limits=goals_table(figures, run.outcomes),
        charts=charts,
        behaviour=_outcomes_table(run.outcomes),
        growth=[Table.of(w.title, _figures(w), figures[w.field].growth) for w in WATCHED],
    )


def goals_table(figures: Figures, outcomes: Mapping[str, Mapping[str, int]]) -> Table:
    """Return the events that must not happen, with their numbers."""
    wrong, failed = (sum(each.get(name, 0) for each in outcomes.values()) for name in ("wrong", "failed"))
    rows = (
        ("requests that failed", "0", str(failed)),
        ("responses that differ from an earlier one", "0", str(wrong)),
        ("figures that grew", "0", str(len(grown(figures)))),
    )
    return Table("goals", ("goal", "limit", "measured"), rows)


def _outcomes_table(outcomes: Mapping[str, Mapping[str, int]]) -> Table:
    names = sorted({name for each in outcomes.values() for name in each})
    rows = tuple(
        (behaviour, *(str(each.get(name, 0)) for name in names)) for behaviour, each in outcomes.items()
    )
    return Table("Behaviour of clients, and outcomes", ("", *names), rows)
