"""What the windows say: rates, ratios of windows side by side, percentiles of what clients waited. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.bars import Bar
from benchmarks.load.plan import BASELINE, GOODPUT, SETTINGS
from benchmarks.load.window import Window
from benchmarks.summary import Interval, Spread, bootstrap, share, spread

_GOODPUT_BAR = 0.97
_PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of waits, in seconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One setting at one level.

    Attributes:
        tokens_per_s: Of all clients together, over the windows.
        ratio: To plain decoding's in the same repetition: the median, and its interval over repetitions.
        first: Time to the first token; None where no response began within a window.
        inter_token: From token to token; tokens that come together share the wait for them.
        pause: Between arrivals, whatever came.
        draft_length: Draft tokens per round, of responses that ended within a window.
        completed: Responses that did.
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
    """A line per level and setting, in their order; plain decoding is among the settings."""
    by_key: dict[tuple[int, str], list[Window]] = {}
    for window in windows:
        by_key.setdefault((window.concurrency, window.setting), []).append(window)
    levels = sorted({concurrency for concurrency, _ in by_key})
    return [
        _figures(_in_order(by_key[level, setting]), _in_order(by_key[level, BASELINE]))
        for level in levels
        for setting in SETTINGS
    ]


def make_bars(figures: Sequence[LoadFigures]) -> list[Bar]:
    """What goodput control promises at every level."""
    return [
        Bar(f"{GOODPUT}, {each.concurrency} at once, by plain decoding", _GOODPUT_BAR, each.ratio)
        for each in figures
        if each.setting == GOODPUT
    ]


def percentiles(waits: Sequence[tuple[float, int]]) -> Percentiles | None:
    """Of waits, each counted as often as it says; None of none."""
    if not waits:
        return None
    seconds, counts = zip(*waits, strict=True)
    found = np.percentile(seconds, _PERCENTILES, weights=counts, method="inverted_cdf")
    return Percentiles(*(float(value) for value in found))


def _in_order(windows: Sequence[Window]) -> list[Window]:
    return sorted(windows, key=lambda window: window.repetition)


def _figures(windows: Sequence[Window], baseline: Sequence[Window]) -> LoadFigures:
    pairs = zip(windows, baseline, strict=True)
    ratios = [share(window.tokens_per_s, plain.tokens_per_s) for window, plain in pairs]
    gaps = [gap for window in windows for gap in window.gaps]
    return LoadFigures(
        setting=windows[0].setting,
        concurrency=windows[0].concurrency,
        tokens_per_s=spread([window.tokens_per_s for window in windows]),
        ratio=bootstrap(ratios, median),
        first=percentiles([(first_s, 1) for window in windows for first_s in window.firsts_s]),
        inter_token=percentiles([(gap_s / count, count) for gap_s, count in gaps]),
        pause=percentiles([(gap_s, 1) for gap_s, _ in gaps]),
        draft_length=share(sum(w.drafted for w in windows), sum(w.rounds for w in windows)),
        completed=sum(window.completed for window in windows),
    )
