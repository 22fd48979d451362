"""What the samples of a run come to: at rest before and after, and under load early and late. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at one process.

    Attributes:
        at_s: Since the load began, the warm-up left out.
        memory_mb: Resident.
        files: Open descriptors.
        tasks: Of its event loop.
        open: Requests of a router, sequences of a service.
        kv_tokens: KV positions that open sequences hold.
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
        field: Of a sample.
        slack: By how much it may lie higher after the load than before.
        slack_share: The same, as a share of what it was.
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
    Watched("Open sequences, of the router requests", "open"),
    Watched("KV positions in use", "kv_tokens"),
)


@dataclass(frozen=True, slots=True)
class Growth:
    """One figure of one process.

    Attributes:
        before: At rest, after the warm-up.
        after: At rest, after the load.
        first_third: Under load, the median of its first third.
        last_third: Of its last third.
        most: Under load.
    """

    process: str
    before: float
    after: float
    first_third: float
    last_third: float
    most: float

    def is_back(self, watched: Watched) -> bool:
        """Whether it is after the load what it was before, but for the slack."""
        return self.after <= self.before + max(watched.slack, watched.slack_share * self.before)


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that one run saw.

    Attributes:
        before: Samples at rest, after the warm-up.
        loaded: Under load, in their order.
        after: At rest, after the load.
        outcomes: Requests by what the client did, and what became of them.
        counted: Requests by what became of them as the router counts.
        faults: What should not have happened.
    """

    before: Sequence[Sample]
    loaded: Sequence[Sample]
    after: Sequence[Sample]
    outcomes: Mapping[str, Mapping[str, int]]
    counted: Mapping[str, int]
    faults: Sequence[str] = ()


def growth(run: Run, watched: Watched) -> list[Growth]:
    """One figure of every process, in the order of the samples."""
    return [_growth(run, name, watched.field) for name in dict.fromkeys(s.process for s in run.before)]


def grown(run: Run) -> list[str]:
    """Every figure that is not back, in words."""
    return [
        f"{each.process}: {watched.title} {each.before:.1f} before, {each.after:.1f} after"
        for watched in WATCHED
        for each in growth(run, watched)
        if not each.is_back(watched)
    ]


def by_minutes(samples: Sequence[Sample], process: str, field: str, parts: int) -> list[tuple[float, float]]:
    """(minute at its middle, median) of every one of so many equal parts that has a sample."""
    own = [sample for sample in samples if sample.process == process]
    end_s = max(sample.at_s for sample in samples) or 1.0
    found: dict[int, list[float]] = {}
    for sample in own:
        part = min(parts - 1, int(parts * max(0.0, sample.at_s) / end_s))
        found.setdefault(part, []).append(getattr(sample, field))
    return [((part + 0.5) / parts * end_s / 60, median(found[part])) for part in sorted(found)]


def _growth(run: Run, process: str, field: str) -> Growth:
    def values(samples: Sequence[Sample]) -> list[float]:
        return [float(getattr(sample, field)) for sample in samples if sample.process == process]

    loaded = values(run.loaded)
    third = max(1, len(loaded) // 3)
    return Growth(
        process,
        median(values(run.before)),
        median(values(run.after)),
        median(loaded[:third]),
        median(loaded[-third:]),
        max(loaded),
    )
