"""The samples of a run, their growth from rest to rest, and the report. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import Figure, Report, Row, Table, make_rows
from benchmarks.scenarios.soak.requests import Plan


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


WATCHED = (
    Watched("resident memory, MB", "memory_mb", 2.0, 0.05),
    Watched("file descriptors", "files", 1.0),
    Watched("threads", "threads", 2.0),
    Watched("tasks of the event loop", "tasks", 1.0),
    Watched("open sequences (router: requests)", "open"),
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


Values = tuple[Watched, str, list[float], list[float], list[float]]
"""A watched figure of a process: at rest after the warm-up, under load, and at rest after the load."""


def _is_back(values: Values) -> bool:
    """Return True if the figure has not grown beyond its slack; a process that is gone is not back."""
    watched, before, after = values[0], median(values[2]), values[4]
    return bool(after) and median(after) <= before + max(watched.slack, watched.slack_share * before)


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _third(values: Sequence[float]) -> int:
    return max(1, len(values) // 3)


FIGURES: tuple[Figure[Values], ...] = (
    Figure("watched", lambda v: v[0].title, {"figure": "{}"}),
    Figure("process", lambda v: v[1], {"process": "{}"}),
    Figure("before", lambda v: median(v[2]), {"before, at rest": "{:.4g}"}),
    Figure("after", lambda v: _median(v[4]), {"after, at rest": "{:.4g}"}),
    Figure("first_third", lambda v: _median(v[3][: _third(v[3])]), {"first third": "{:.4g}"}),
    Figure("last_third", lambda v: _median(v[3][-_third(v[3]) :]), {"last third": "{:.4g}"}),
    Figure("most", lambda v: max(v[3], default=None), {"most": "{:.4g}"}),
    Figure("is_back", _is_back, {"": lambda is_back: "back" if is_back else "grown"}),
)
OUTCOMES = ("done", "left", "late", "rejected", "wrong", "failed")
"""Outcomes of requests, in the order of the table."""


def growth(run: Run) -> list[Row]:
    """Return every watched figure of every process that was there before the load."""
    return make_rows(FIGURES, _values(run))


def _values(run: Run) -> Iterator[Values]:
    for watched in WATCHED:
        for process in dict.fromkeys(sample.process for sample in run.before):
            phases = (
                [float(getattr(each, watched.field)) for each in phase if each.process == process]
                for phase in (run.before, run.loaded, run.after)
            )
            yield (watched, process, *phases)  # type: ignore[misc]


def grown(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for every figure that has grown."""
    return [
        f"{each.process}: {each.watched} {each.before:.1f} before, {_shown(each.after)} after"
        for each in rows
        if not each.is_back
    ]


def _shown(value: float | None) -> str:
    return "no sample" if value is None else f"{value:.1f}"


def make_report(machine: Machine, plan: Plan, run: Run) -> Report:
    """Return the report."""
    rows = growth(run)
    faults = [*grown(rows), *run.faults]
    wrong, failed = (sum(each.get(name, 0) for each in run.outcomes.values()) for name in OUTCOMES[-2:])
    behaviours = (
        (name, *(str(each.get(outcome, 0)) for outcome in OUTCOMES)) for name, each in run.outcomes.items()
    )
    report = Report(
        "soak", machine, plan, outcomes=run.outcomes, counted=run.counted, faults=faults, figures=rows
    )
    return report.fill(
        limits=Table(
            "goals",
            ("goal", "limit", "measured"),
            (
                ("requests that failed", "0", str(failed)),
                ("responses that differ from an earlier one", "0", str(wrong)),
                ("figures that grew", "0", str(len(grown(rows)))),
                ("errors of clients and in the logs, listed below", "0", str(len(run.faults))),
            ),
        ),
        svg=_chart(run.loaded),
        behaviour=Table("Behaviour of clients, and outcomes", ("", *OUTCOMES), tuple(behaviours)),
        growth=Table.of("From rest to rest", FIGURES, rows),
        shown=("process", "before, at rest", "after, at rest", ""),
    )


def _chart(samples: Sequence[Sample]) -> str:
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in samples:
        lines.setdefault(each.process, []).append((each.at_s / 60, each.memory_mb))
    return line_chart("Resident memory under load", "minutes", "MB", lines)
