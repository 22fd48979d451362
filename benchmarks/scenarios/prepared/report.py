"""The report: each way at its best draft length, beside drafting ahead at its own. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.machine import Machine
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Table, make_rows
from benchmarks.harness.statistics import Goal
from benchmarks.scenarios.acceleration.measure import Run, Runs
from benchmarks.scenarios.acceleration.report import compare
from benchmarks.scenarios.prepared.plan import AHEAD, DEMO, MODES, SIMULATED, Plan, Setting
from flyserve.bench.statistics import share, speed, tau, total

TITLES = {
    DEMO: "The demo pair",
    "aligned": "The aligned pair",
    SIMULATED: "The tokens of the demo pair, the times of Llama 3.3 70B and 3.1 8B",
}
_GOALS = {DEMO: 1.1, SIMULATED: 1.25}


@dataclass(frozen=True, slots=True)
class Best:
    """A way at its best draft length in one mode, with the runs of drafting ahead at its best."""

    setting: Setting
    runs: Sequence[Run]
    ahead: Sequence[Run]
    dilation: float


def _ahead_share(best: Best) -> float:
    """Return the share of all drafts that were ready when they were asked for."""
    return share(_total(best.runs, "drafted_ahead"), _total(best.runs, "drafted"))


def _total(runs: Sequence[Run], name: str) -> float:
    return total(runs, lambda statistics: float(getattr(statistics, name)))


FIGURES: tuple[Figure[Best], ...] = (
    Figure("mode", lambda b: b.setting.mode.value, {"mode": "{}"}),
    Figure("way", lambda b: b.setting.way.name, {"while the target verifies": "{}"}),
    Figure("outcomes", lambda b: b.setting.way.outcomes),
    Figure("draft_length", lambda b: b.setting.draft_length, {"drafts of": "{}"}),
    Figure("tokens_per_s", lambda b: speed(b.runs) * b.dilation, {"tokens/s": "{:.0f}"}),
    Figure("by_ahead", lambda b: compare(b.runs, b.ahead), {"by ahead": TIMES, "95% interval": AROUND}),
    Figure("tau", lambda b: tau(b.runs), {"tau": "{:.2f}"}),
    Figure("ready", _ahead_share, {"ready": "{:.0%}"}),
    Figure("dropped", lambda b: share(_total(b.runs, "dropped_ahead"), _total(b.runs, "emitted"))),
)


def bests(plan: Plan, part: str, runs: Runs) -> Iterator[Best]:
    """Yield every way in every mode, at its fastest draft length."""
    dilation = plan.dilation if part == SIMULATED else 1.0
    for mode in MODES:
        fastest = {
            way: max(
                (Setting(way, mode, length) for length in plan.draft_lengths),
                key=lambda setting: speed(runs[setting.name]),
            )
            for way in plan.ways
        }
        for setting in fastest.values():
            yield Best(setting, runs[setting.name], runs[fastest[AHEAD].name], dilation)


def make_report(plan: Plan, machine: Machine, runs: Mapping[str, Runs]) -> Report:
    """Return the report of the pairs that were measured."""
    figures = {part: make_rows(FIGURES, bests(plan, part, found)) for part, found in runs.items()}
    goals = [
        Goal(f"{TITLES[part]}, {row.mode}, {row.way} by ahead", _GOALS[part], row.by_ahead)
        for part, rows in figures.items()
        if part in _GOALS
        for row in rows
        if row.outcomes > 1
    ]
    return Report("prepared", machine, plan, figures=figures, runs=runs).fill(
        targets=goals,
        tables=[Table.of(TITLES[part], FIGURES, rows) for part, rows in figures.items()],
    )
