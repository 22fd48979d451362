"""The demo under load, 1 to 64 requests at once: plain, and several draft lengths (15 minutes)."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle
from typing import Annotated
from uuid import uuid4

import uvloop

from benchmarks.harness.client import PLAIN, demo_prompts, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.deployed import demo_with_room, deployed
from benchmarks.harness.load import Ask, Chunks, Interleave, Level, Window, cut_window, run_window
from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import line_chart
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import median_ratio, percentiles, spread
from fly.types import Mode
from flyserve import AsyncClient
from flyserve.bench.comparison import rotated
from flyserve.bench.statistics import share

DRAFT_LENGTH = 15
BASELINE = "plain"
FIXED = {f"FLy, fixed {length}": length for length in (5, 10, DRAFT_LENGTH)}
SETTINGS = {
    BASELINE: PLAIN,
    "exact": speculation(Mode.EXACT, DRAFT_LENGTH),
    **{name: speculation(Mode.FLY, length) for name, length in FIXED.items()},
}
"""Ways of decoding by name, in the order of the tables."""
_NUM_PROMPTS = 300
_PAUSE_S = 0.2
"""Pause between windows, in which cancelled requests end everywhere."""


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        levels: Numbers of concurrent requests.
        repeat: Windows of every setting at every level.
        warm_ups: Windows before these, which do not count.
    """

    levels: Annotated[tuple[Level, ...], Quick((Level(1, 0.2, 0.8), Level(64, 0.8, 1.2)))] = (
        Level(1, 0.5, 2.5),
        Level(4, 0.5, 2.5),
        Level(16, 1.0, 3.5),
        Level(64, 2.5, 5.0),
    )
    repeat: Annotated[int, Quick(1)] = 7
    warm_ups: Annotated[int, Quick(0)] = 1

    @property
    def max_concurrent(self) -> int:
        """The largest number of concurrent requests."""
        return max(level.concurrency for level in self.levels)


def run(plan: Plan, context: Context) -> Report:
    """Measure window after window of the demo."""
    windows: list[Window] = []
    with deployed(demo_with_room(plan.max_concurrent), "the demo's services", context.verbose) as running:
        for level in plan.levels:
            name = f"{level.concurrency}-at-once"
            measure = partial(_run_level, running.address, level, plan, context)
            windows += context.parts.measure(name, list[Window], measure)
    return make_report(context.machine, plan, summarize_load(windows), windows)


def _run_level(address: str, level: Level, plan: Plan, context: Context) -> list[Window]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:

        def ask_by(setting: str) -> Ask:
            way, salt = SETTINGS[setting], uuid4().hex

            def ask(prompt: Sequence[int], max_new_tokens: int) -> Chunks:
                return client.stream(prompt, max_new_tokens, speculation=way, cache_salt=salt)

            return ask

        client = runner.run(AsyncClient(address, retries=0).__aenter__())
        label = f"{level.concurrency} at once"
        interleave = partial(context.interleave, label, warm_ups=plan.warm_ups)
        try:
            prompts = demo_prompts(_NUM_PROMPTS)
            return measure_level(ask_by, level, plan.repeat, prompts, runner, interleave)
        finally:
            runner.run(client.__aexit__(None, None, None))


def measure_level(
    ask_by: Callable[[str], Ask],
    level: Level,
    repeat: int,
    prompts: Sequence[Sequence[int]],
    runner: asyncio.Runner,
    interleave: Interleave[str, Window],
) -> list[Window]:
    """Measure windows of every setting in turn.

    `ask_by` is called for each window, and returns a function that sends requests under a setting. In every
    repetition all settings begin with the same prompt.
    """

    async def window(setting: str, turn: int) -> Window:
        source = cycle(rotated(prompts, turn * level.concurrency))
        streams, begin_s, end_s = await run_window(ask_by(setting), source, level)
        await asyncio.sleep(_PAUSE_S)
        return cut_window(setting, level.concurrency, turn, streams, begin_s, end_s)

    found = interleave(tuple(SETTINGS), repeat, lambda setting, turn: runner.run(window(setting, turn)))
    return [window for windows in found.values() for window in windows]


Windows = Sequence[Window]
"""Windows of one setting at one level, repetition by repetition."""


def _rates(windows: Windows) -> list[float]:
    return [window.tokens_per_s for window in windows]


def _gaps(windows: Windows) -> list[tuple[float, int]]:
    return [gap for window in windows for gap in window.gaps]


FIGURES: tuple[Figure[tuple[Windows, Windows]], ...] = (
    Figure("setting", lambda w: w[0][0].setting, {"": "{}"}),
    Figure("concurrency", lambda w: w[0][0].concurrency),
    Figure(
        "tokens_per_s",
        lambda w: spread(_rates(w[0])),
        {"tokens/s": "{.value:.0f}", "least to most": "{0.least:.0f} to {0.most:.0f}"},
    ),
    Figure(
        "ratio",
        lambda w: median_ratio(_rates(w[0]), _rates(w[1])),
        {"by plain": TIMES, "95% interval": AROUND},
    ),
    Figure(
        "first",
        lambda w: percentiles([(first_s, 1) for window in w[0] for first_s in window.firsts_s]),
        {"first p50 / p95 / p99, ms": "{}"},
    ),
    Figure(
        "inter_token",
        lambda w: percentiles([(gap_s / count, count) for gap_s, count in _gaps(w[0])]),
        {"inter-token p50 / p95 / p99, ms": "{}"},
    ),
    Figure(
        "pause",
        lambda w: percentiles([(gap_s, 1) for gap_s, _ in _gaps(w[0])]),
        {"pause p50 / p95 / p99, ms": "{}"},
    ),
    Figure(
        "draft_length",
        lambda w: share(sum(each.drafted for each in w[0]), sum(each.rounds for each in w[0])),
        {"draft": "{:.1f}"},
    ),
    Figure("completed", lambda w: sum(each.completed for each in w[0]), {"ended": "{}"}),
)
"""The figures of one setting at one level, from its windows and those of plain decoding."""
_SHOWN = ("tokens/s", "by plain", "95% interval", "inter-token p50 / p95 / p99, ms")


def summarize_load(windows: Windows) -> list[Row]:
    """Return the figures of each level and setting, in their order."""
    levels = sorted({window.concurrency for window in windows})
    keys = [(setting, level) for level in levels for setting in SETTINGS]
    return make_rows(FIGURES, [(_select(windows, *key), _select(windows, BASELINE, key[1])) for key in keys])


def _select(windows: Windows, setting: str, level: int) -> list[Window]:
    """Return the windows of a setting at a level, in the order of their repetitions."""
    found = [each for each in windows if (each.setting, each.concurrency) == (setting, level)]
    return sorted(found, key=lambda window: window.repetition)


def make_report(machine: Machine, plan: Plan, figures: Sequence[Row], windows: Windows) -> Report:
    """Return the report; its data have the figures, and the windows without their single waits."""
    kept = [{k: v for k, v in asdict(each).items() if k not in ("gaps", "firsts_s")} for each in windows]
    report = Report("load-levels", machine, plan, figures=figures, windows=kept)
    ratios = [(each.setting, each.concurrency, each.ratio.value) for each in figures]
    waits = [(f.setting, f.concurrency, 1e3 * f.inter_token.p95) for f in figures if f.inter_token]
    charts = []
    for suffix, title, unit, points in (
        ("ratio", "Tokens per second", "divided by plain decoding's", ratios),
        ("inter-token", "From token to token", "95th percentile, ms", waits),
    ):
        lines = {name: [(x, y) for setting, x, y in points if setting == name] for name in SETTINGS}
        if all(lines.values()):
            charts.append((suffix, title, line_chart(title, "concurrent requests", unit, lines, True)))
    levels = [
        Table.of(title, FIGURES, [each for each in figures if each.concurrency == level])
        for level in dict.fromkeys(each.concurrency for each in figures)
        for title in ("One request at a time" if level == 1 else f"{level} concurrent requests",)
    ]
    return report.fill(
        draft_length=DRAFT_LENGTH,
        charts=charts,
        levels=levels,
        shown=_SHOWN,
    )
