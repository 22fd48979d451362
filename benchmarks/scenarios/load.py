"""The demo under load: 1, 4, 16 and 64 concurrent requests, compared with plain decoding (11 minutes)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from uuid import uuid4

import uvloop

from benchmarks.harness.client import PLAIN, speculation
from benchmarks.harness.command import Context
from benchmarks.harness.deployed import demo_with_room, deployed
from benchmarks.harness.load import Ask, Chunks, Level, Window, cut_window, run_window, turns
from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import Points, line_chart
from benchmarks.harness.prompts import demo_prompts
from benchmarks.harness.report import Columns, Report, Table, around, times, waits_ms
from benchmarks.harness.statistics import Goal, Percentiles, Spread, median_ratio, percentiles, spread
from fly.types import Mode
from flyserve import AsyncClient
from flyserve.bench.comparison import rotated
from flyserve.bench.progress import Advance, progress_bar
from flyserve.bench.statistics import Interval, share

DRAFT_LENGTH = 15
BASELINE, FIXED, GOODPUT = "plain", f"FLy, fixed {DRAFT_LENGTH}", "FLy, goodput"
SETTINGS = {
    BASELINE: PLAIN,
    "exact": speculation(Mode.EXACT, DRAFT_LENGTH),
    FIXED: speculation(Mode.FLY, DRAFT_LENGTH),
    GOODPUT: speculation(Mode.FLY, DRAFT_LENGTH, is_goodput=True),
}
"""Ways of decoding by name, in the order of the tables."""
_GOODPUT_GOAL = 0.97
_NUM_PROMPTS = 300
_PAUSE_S = 0.2
"""Pause between windows, in which cancelled requests end everywhere."""
_INTRODUCTION = f"""
The deployment is the demo as it is shipped (two target replicas, a drafter, a sub-drafter and a router on
Ray), with room for the largest number of concurrent requests. Each client sends one held-out problem after
the other, streamed, with greedy decoding and drafts of at most {DRAFT_LENGTH}. Settings take turns in short
windows, in an order that rotates. The first window of each setting does not count, nor do the first moments
of a window. Every window has its own cache salt, so nothing is cached from one window to the next; only the
round costs that the router has learned remain.

*by plain*: tokens per second divided by those of plain decoding in the same repetition; the median, and its
95% interval over resamples of the repetitions. Waits are those of the clients, in milliseconds. *first*: time
to the first token. *inter-token*: time from token to token; tokens that arrive together share the wait.
*pause*: time between arrivals, however many tokens arrive. *draft*: draft tokens per round, rounds without a
draft included. *ended*: responses that ended within a window.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measuring.

    Attributes:
        levels: Numbers of concurrent requests.
        repeat: Windows of every setting at every level, after one that does not count.
    """

    levels: tuple[Level, ...] = (
        Level(1, 0.5, 2.5),
        Level(4, 0.5, 2.5),
        Level(16, 1.0, 3.5),
        Level(64, 2.5, 5.0),
    )
    repeat: int = 7

    def quick(self) -> "Plan":
        """Return a plan of some seconds."""
        return replace(self, levels=(Level(1, 0.2, 1.2), Level(64, 0.6, 1.2)), repeat=1)

    @property
    def max_concurrent(self) -> int:
        """The largest number of concurrent requests."""
        return max(level.concurrency for level in self.levels)


def run(plan: Plan, context: Context) -> Report:
    """Measure window after window of the demo."""
    windows: list[Window] = []
    with deployed(demo_with_room(plan.max_concurrent), "the demo's services", context.verbose) as address:
        for level in plan.levels:

            def measure(level: Level = level) -> list[Window]:
                return _run_level(address, level, plan.repeat, context)

            windows += context.parts.measure(f"{level.concurrency}-at-once", list[Window], measure)
    return make_report(context.machine, plan, summarize_load(windows), windows)


def _run_level(address: str, level: Level, repeat: int, context: Context) -> list[Window]:
    total, label = (1 + repeat) * len(SETTINGS), f"{level.concurrency} at once"
    with (
        progress_bar(context.console, total, label) as advance,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(_measure(address, level, repeat, advance))


async def _measure(address: str, level: Level, repeat: int, advance: Advance) -> list[Window]:
    async with AsyncClient(address, retries=0) as client:

        def ask_by(setting: str) -> Ask:
            way, salt = SETTINGS[setting], uuid4().hex

            def ask(prompt: Sequence[int], max_new_tokens: int) -> Chunks:
                return client.stream(prompt, max_new_tokens, speculation=way, cache_salt=salt)

            return ask

        return await measure_level(ask_by, level, repeat, demo_prompts(_NUM_PROMPTS), advance)


async def measure_level(
    ask_by: Callable[[str], Ask],
    level: Level,
    repeat: int,
    prompts: Sequence[Sequence[int]],
    advance: Advance,
) -> list[Window]:
    """Measure windows of every setting in turn; the first of each does not count.

    Args:
        ask_by: From a setting to a function that sends its requests; called again for each window.
        level: The number of concurrent requests.
        repeat: Windows of every setting that count.
        prompts: At least one; in every repetition all settings begin with the same one.
        advance: Called after each window.
    """
    windows = []
    for turn, setting in turns(tuple(SETTINGS), 1 + repeat):
        source = cycle(rotated(prompts, turn * level.concurrency))
        streams, begin_s, end_s = await run_window(ask_by(setting), source, level)
        if turn:
            windows.append(cut_window(setting, level.concurrency, turn - 1, streams, begin_s, end_s))
        advance()
        await asyncio.sleep(_PAUSE_S)
    return windows


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One setting at one level.

    Attributes:
        tokens_per_s: Rate of all clients together, over the windows.
        ratio: Rate divided by that of plain decoding in the same repetition.
        first: Time to the first token; None if no response began within a window.
        inter_token: Time from token to token; tokens that arrive together share the wait.
        pause: Time between arrivals.
        draft_length: Draft tokens per round, of responses that ended within a window.
        completed: Responses that ended within a window.
    """

    setting: str
    concurrency: int
    tokens_per_s: Spread
    ratio: Interval
    first: Percentiles | None
    inter_token: Percentiles | None
    pause: Percentiles | None
    draft_length: float
    completed: int


def summarize_load(windows: Sequence[Window]) -> list[LoadFigures]:
    """Return the figures of each level and setting, in their order."""
    by_key: dict[tuple[int, str], list[Window]] = {}
    for window in sorted(windows, key=lambda window: window.repetition):
        by_key.setdefault((window.concurrency, window.setting), []).append(window)
    levels = sorted({concurrency for concurrency, _ in by_key})
    return [
        _figures(by_key[level, setting], by_key[level, BASELINE]) for level in levels for setting in SETTINGS
    ]


def _figures(windows: Sequence[Window], baseline: Sequence[Window]) -> LoadFigures:
    rates, plain = ([window.tokens_per_s for window in each] for each in (windows, baseline))
    gaps = [gap for window in windows for gap in window.gaps]
    return LoadFigures(
        setting=windows[0].setting,
        concurrency=windows[0].concurrency,
        tokens_per_s=spread(rates),
        ratio=median_ratio(rates, plain),
        first=percentiles([(first_s, 1) for window in windows for first_s in window.firsts_s]),
        inter_token=percentiles([(gap_s / count, count) for gap_s, count in gaps]),
        pause=percentiles([(gap_s, 1) for gap_s, _ in gaps]),
        draft_length=share(sum(w.drafted for w in windows), sum(w.rounds for w in windows)),
        completed=sum(window.completed for window in windows),
    )


def make_goals(figures: Sequence[LoadFigures]) -> list[Goal]:
    """Return the goal of the draft length policy `goodput` at every level."""
    return [
        Goal(f"{GOODPUT}, {each.concurrency} at once, by plain decoding", _GOODPUT_GOAL, each.ratio)
        for each in figures
        if each.setting == GOODPUT
    ]


_COLUMNS: Columns[LoadFigures] = {
    "": lambda f: f.setting,
    "tokens/s": lambda f: f"{f.tokens_per_s.value:.0f}",
    "least to most": lambda f: f"{f.tokens_per_s.least:.0f} to {f.tokens_per_s.most:.0f}",
    "by plain": lambda f: times(f.ratio.value),
    "95% interval": lambda f: around(f.ratio),
    "first p50 / p95 / p99, ms": lambda f: waits_ms(f.first),
    "inter-token p50 / p95 / p99, ms": lambda f: waits_ms(f.inter_token),
    "pause p50 / p95 / p99, ms": lambda f: waits_ms(f.pause),
    "draft": lambda f: f"{f.draft_length:.1f}",
    "ended": lambda f: str(f.completed),
}
_SHOWN = ("tokens/s", "by plain", "95% interval", "inter-token p50 / p95 / p99, ms")


def make_report(
    machine: Machine, plan: Plan, figures: Sequence[LoadFigures], windows: Sequence[Window] = ()
) -> Report:
    """Return the report; its data have the figures, and the windows without their single waits."""
    kept = [{k: v for k, v in asdict(each).items() if k not in ("gaps", "firsts_s")} for each in windows]
    report = Report("load", machine, plan, figures=figures, windows=kept)
    report.introduction("Under load", _INTRODUCTION)
    lengths = ", ".join(f"{level.measure_s:g} s at {level.concurrency}" for level in plan.levels)
    report.text(f"{plan.repeat} windows of every setting at every level: {lengths}.")
    report.goals(make_goals(figures))
    for suffix, (title, unit, figure) in _CHARTS.items():
        lines = {setting: _points(figures, setting, figure) for setting in SETTINGS}
        if all(lines.values()):
            report.chart(suffix, line_chart(title, "concurrent requests", unit, lines, True), title)
    for level in dict.fromkeys(each.concurrency for each in figures):
        title = "One request at a time" if level == 1 else f"{level} concurrent requests"
        rows = [each for each in figures if each.concurrency == level]
        report.table(Table.of(title, _COLUMNS, rows), _SHOWN, title=True)
    return report


_CHARTS: Mapping[str, tuple[str, str, Callable[[LoadFigures], float | None]]] = {
    "ratio": ("Tokens per second", "divided by plain decoding's", lambda f: f.ratio.value),
    "inter-token": (
        "From token to token",
        "95th percentile, ms",
        lambda f: 1e3 * f.inter_token.p95 if f.inter_token else None,
    ),
}


def _points(
    figures: Sequence[LoadFigures], setting: str, figure: Callable[[LoadFigures], float | None]
) -> Points:
    found = ((each.concurrency, figure(each)) for each in figures if each.setting == setting)
    return [(concurrency, value) for concurrency, value in found if value is not None]
