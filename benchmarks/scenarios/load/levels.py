"""The demo under load, 1 to 64 requests at once: plain, and several draft lengths (15 minutes)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import yaml

from benchmarks.harness.client import PLAIN, demo_prompts, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.deployed import demo_with_room, deployed
from benchmarks.harness.load import Level, Window
from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import Report, Row
from benchmarks.harness.system import running_services
from benchmarks.harness.windows import SHOWN, Way, kept, level_tables, run_level, summarize
from flyserve.core.types import Mode

DRAFT_LENGTH = 15
BASELINE = "plain"
FIXED = {f"FLy, fixed {length}": length for length in (5, 10, DRAFT_LENGTH)}
SETTINGS = {
    BASELINE: PLAIN,
    "exact": speculation(Mode.EXACT, DRAFT_LENGTH),
    **{name: speculation(Mode.FLY, length) for name, length in FIXED.items()},
}
"""Ways of decoding by name, in the order of the tables."""
BESIDE = "beside, "
"""Prefix of the ways of the other deployment."""
_NUM_PROMPTS = 300


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        levels: Numbers of concurrent requests.
        beside: Keys in which another deployment differs that is measured in turn with the demo.
        single_process: The other deployment runs in one process.
        repeat: Windows of every setting at every level.
        warm_ups: Windows before these, which do not count.
    """

    levels: Annotated[tuple[Level, ...], Quick((Level(1, 0.2, 0.8), Level(64, 0.8, 1.2)))] = (
        Level(1, 0.5, 2.5),
        Level(4, 0.5, 2.5),
        Level(16, 1.0, 3.5),
        Level(64, 2.5, 5.0),
    )
    beside: dict[str, Any] = field(default_factory=dict)
    single_process: bool = False
    repeat: Annotated[int, Quick(1)] = 7
    warm_ups: Annotated[int, Quick(0)] = 1

    @property
    def max_concurrent(self) -> int:
        """The largest number of concurrent requests."""
        return max(level.concurrency for level in self.levels)


def run(plan: Plan, context: Context) -> Report:
    """Measure window after window of the demo."""
    windows, prompts = list[Window](), demo_prompts(_NUM_PROMPTS)
    with _ways(plan, context) as ways:
        for level in plan.levels:
            windows += run_level(ways, level, plan.repeat, plan.warm_ups, prompts, context)
    return make_report(context.machine, plan, windows)


@contextmanager
def _ways(plan: Plan, context: Context) -> Iterator[dict[str, Way]]:
    """Yield the ways of decoding, at the address of their deployment."""
    demo = demo_with_room(plan.max_concurrent)
    with running_services() as services, deployed(demo, "the demo's services", context.verbose) as running:
        ways = {name: Way(running.address, way) for name, way in SETTINGS.items()}
        if plan.beside or plan.single_process:
            keys = merged(demo.model_dump(mode="json", exclude_unset=True), plan.beside)
            file = services.new_folder("deployment") / "deployment.yaml"
            file.write_text(yaml.safe_dump(keys), encoding="utf-8")
            flags = ("--single-process",) if plan.single_process else ()
            other = services.start("flyserve", "up", str(file), *flags)
            ways |= {f"{BESIDE}{name}": Way(other.address, way) for name, way in SETTINGS.items()}
        yield ways


def merged(keys: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys with those of `others` in their place, section by section."""
    found = dict(keys)
    for name, value in others.items():
        nested = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if nested else value
    return found


def make_report(machine: Machine, plan: Plan, windows: Sequence[Window]) -> Report:
    """Return the report; its data have the figures, and the windows without their single waits."""
    figures = summarize(windows, lambda _: BASELINE)
    report = Report("load-levels", machine, plan, figures=figures, windows=kept(windows))
    return report.fill(
        draft_length=DRAFT_LENGTH, charts=_charts(figures), levels=level_tables(figures), shown=SHOWN
    )


def _charts(figures: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Return suffix, title and SVG of the charts whose lines all have points."""
    ratios = [(each.setting, each.concurrency, each.ratio.value) for each in figures]
    waits = [(f.setting, f.concurrency, 1e3 * f.inter_token.p95) for f in figures if f.inter_token]
    charts = []
    for suffix, title, unit, points in (
        ("ratio", "Tokens per second", "relative to plain decoding", ratios),
        ("inter-token", "From token to token", "95th percentile, ms", waits),
    ):
        lines = {name: [(x, y) for setting, x, y in points if setting == name] for name in SETTINGS}
        if all(lines.values()):
            charts.append((suffix, title, line_chart(title, "concurrent requests", unit, lines, True)))
    return charts
