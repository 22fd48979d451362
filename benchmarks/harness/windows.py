"""Windows of concurrent requests, setting by setting in turn, and their figures."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple
from uuid import uuid4

import uvloop

from benchmarks.harness.client import Prompts
from benchmarks.harness.command import Context
from benchmarks.harness.load import Ask, Interleave, Level, Window, asker, cut_window, run_window
from benchmarks.harness.report import AMONG, TIMES, Figure, Row, Table, make_rows
from benchmarks.harness.statistics import percentiles, ratio_spread, spread
from flyserve import AsyncClient
from flyserve.bench.comparison import rotated
from flyserve.bench.statistics import share
from flyserve.core.request import SpeculationParams

SHOWN = ("tokens/s", "ratio", "ratios", "inter-token p50 / p95 / p99, ms")
_PAUSE_S = 0.2
"""Pause between windows, in which cancelled requests end everywhere."""


class Way(NamedTuple):
    """A way of decoding at the router of an address."""

    address: str
    speculation: SpeculationParams


def run_level(
    ways: Mapping[str, Way], level: Level, repeat: int, warm_ups: int, prompts: Prompts, context: Context
) -> list[Window]:
    """Measure windows of every setting in turn; every window has a cache salt of its own."""
    interleave = partial(context.interleave, f"{level.concurrency} at once", warm_ups=warm_ups)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        clients = {each.address: AsyncClient(each.address, retries=0) for each in ways.values()}

        def ask_by(name: str) -> Ask:
            return asker(clients[ways[name].address], ways[name].speculation, uuid4().hex)

        for client in clients.values():
            runner.run(client.__aenter__())
        try:
            return measure_level(tuple(ways), ask_by, level, repeat, prompts, runner, interleave)
        finally:
            for client in clients.values():
                runner.run(client.__aexit__(None, None, None))


def measure_level(
    names: Sequence[str],
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

    found = interleave(names, repeat, lambda setting, turn: runner.run(window(setting, turn)))
    return [window for windows in found.values() for window in windows]


Windows = Sequence[Window]
Compared = tuple[Windows, Windows]
"""The windows of one setting at one level, and those of its baseline, repetition by repetition."""


def _rates(windows: Windows) -> list[float]:
    return [window.tokens_per_s for window in windows]


def _waits(name: str, head: str, waits: Callable[[Window], list[tuple[float, int]]]) -> Figure[Compared]:
    """Return percentiles of the waits of all windows, each with the number of times that it counts."""

    def compute(compared: Compared) -> Any:
        return percentiles([wait for window in compared[0] for wait in waits(window)])

    return Figure(name, compute, {f"{head} p50 / p95 / p99, ms": "{}"})


FIGURES: tuple[Figure[Compared], ...] = (
    Figure("setting", lambda w: w[0][0].setting, {"": "{}"}),
    Figure("concurrency", lambda w: w[0][0].concurrency),
    Figure(
        "tokens_per_s",
        lambda w: spread(_rates(w[0])),
        {"tokens/s": "{.value:.0f}", "least to most": "{0.least:.0f} to {0.most:.0f}"},
    ),
    Figure(
        "ratio",
        lambda w: ratio_spread(_rates(w[0]), _rates(w[1])),
        {"ratio": TIMES, "ratios": AMONG},
    ),
    _waits("first", "first", lambda w: [(first_s, 1) for first_s in w.firsts_s]),
    _waits("inter_token", "inter-token", lambda w: [(gap_s / count, count) for gap_s, count in w.gaps]),
    _waits("pause", "pause", lambda w: [(gap_s, 1) for gap_s, _ in w.gaps]),
    Figure(
        "draft_length",
        lambda w: share(sum(each.drafted for each in w[0]), sum(each.rounds for each in w[0])),
        {"draft": "{:.1f}"},
    ),
    Figure("completed", lambda w: sum(each.completed for each in w[0]), {"ended": "{}"}),
)
"""The figures of one setting at one level, from its windows and those of its baseline."""


def summarize(windows: Windows, base_of: Callable[[str], str]) -> list[Row]:
    """Return the figures of each level and setting; `base_of` returns the baseline of a setting."""
    levels = sorted({window.concurrency for window in windows})
    keys = [(name, level) for level in levels for name in dict.fromkeys(each.setting for each in windows)]
    pairs = [(_select(windows, name, level), _select(windows, base_of(name), level)) for name, level in keys]
    return make_rows(FIGURES, pairs)


def _select(windows: Windows, setting: str, level: int) -> list[Window]:
    """Return the windows of a setting at a level, in the order of their repetitions."""
    found = [each for each in windows if (each.setting, each.concurrency) == (setting, level)]
    return sorted(found, key=lambda window: window.repetition)


def level_tables(figures: Sequence[Row]) -> list[Table]:
    """Return a table for each number of concurrent requests."""
    return [
        Table.of(title, FIGURES, [each for each in figures if each.concurrency == level])
        for level in dict.fromkeys(each.concurrency for each in figures)
        for title in ("One request at a time" if level == 1 else f"{level} concurrent requests",)
    ]


def kept(windows: Windows) -> list[dict[str, Any]]:
    """Return the windows without their single waits, for the data of a report."""
    return [{k: v for k, v in asdict(each).items() if k not in ("gaps", "firsts_s")} for each in windows]
