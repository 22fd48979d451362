"""The report as tables for the terminal, Markdown, JSON and charts."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.bars import Bar, bars_table, ratio_cells
from benchmarks.load.figures import LoadFigures, Percentiles, make_bars, summarize_load
from benchmarks.load.plan import DRAFT_LENGTH, SETTINGS, Plan
from benchmarks.load.window import Window
from benchmarks.machine import Machine
from benchmarks.svg import line_chart
from benchmarks.text_table import TextTable

_STEM = "load"
_WAITS = tuple(f"{wait} p50 / p95 / p99, ms" for wait in ("first", "inter-token", "pause"))
_NARROW = ("tokens/s", "by plain", "95% interval", _WAITS[1])
_INTRODUCTION = f"""\
# Under load

The demo as it is shipped (two target replicas, a drafter, a sub-drafter and a router on Ray), but with room
for the most requests at once. So many clients each ask for one held-out problem after the other, streamed,
greedily, drafts of {DRAFT_LENGTH} at most. Settings take turns in short windows, in an order that rotates;
the first window of each is not counted, and neither are the first moments of a window. Nothing is remembered
from one window to the next, but for what the router has learned of the costs of a round.

*by plain*: tokens per second by plain decoding's in the same repetition: the median, and its 95% interval
over resamples of the repetitions. Waits are those of the clients, in milliseconds: *first*, until the first
token; *inter-token*, from token to token, where tokens that come together share the wait for them; *pause*,
between arrivals, however many tokens come. *draft*: draft tokens per round, those without a draft included.
*ended*: responses that ended within a window.
"""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Everything that one run found."""

    machine: Machine
    plan: Plan
    windows: Sequence[Window]

    @property
    def figures(self) -> list[LoadFigures]:
        return summarize_load(self.windows)

    @property
    def bars(self) -> list[Bar]:
        return make_bars(self.figures)


def make_tables(report: LoadReport) -> Iterator[TextTable]:
    """For the terminal: a table per level, then what was promised."""
    for table in _level_tables(report.figures):
        yield table.only(_NARROW)
    yield bars_table(report.bars)


def write_report(report: LoadReport, folder: Path) -> Path:
    """Writes everything into a folder; the Markdown's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_STEM}.json").write_text(json.dumps(_data(report), indent=1) + "\n", encoding="utf-8")
    for name, chart in _charts(report.figures).items():
        (folder / name).write_text(chart, encoding="utf-8")
    path = folder / f"{_STEM}.md"
    path.write_text("\n".join(_lines(report)), encoding="utf-8")
    return path


def _lines(report: LoadReport) -> Iterator[str]:
    yield _INTRODUCTION
    yield f"Machine: {report.machine.describe()}\n"
    lengths = ", ".join(f"{level.measure_s:g} s at {level.concurrency}" for level in report.plan.levels)
    yield f"{report.plan.repetitions} windows of every setting at every level: {lengths}.\n"
    yield from bars_table(report.bars).markdown()
    yield from (f"\n![{name}]({name})" for name in _charts(report.figures))
    for table in _level_tables(report.figures):
        yield f"\n## {table.title}\n"
        yield from table.markdown()
    yield ""


def _level_tables(figures: Sequence[LoadFigures]) -> Iterator[TextTable]:
    for level in sorted({each.concurrency for each in figures}):
        yield _level_table(level, [each for each in figures if each.concurrency == level])


def _level_table(level: int, figures: Sequence[LoadFigures]) -> TextTable:
    heads = ("", "tokens/s", "least to most", "by plain", "95% interval", *_WAITS, "draft", "ended")
    title = "One request at a time" if level == 1 else f"{level} requests at once"
    return TextTable(title, heads, tuple(_row(each) for each in figures))


def _row(figures: LoadFigures) -> tuple[str, ...]:
    rate = figures.tokens_per_s
    waits = (figures.first, figures.inter_token, figures.pause)
    return (
        figures.setting,
        f"{rate.value:.0f}",
        f"{rate.least:.0f} to {rate.most:.0f}",
        *ratio_cells(figures.ratio),
        *(_waits(wait) for wait in waits),
        f"{figures.draft_length:.1f}",
        str(figures.completed),
    )


def _waits(waits: Percentiles | None) -> str:
    if waits is None:
        return "-"
    return " / ".join(f"{1e3 * seconds:.1f}" for seconds in (waits.p50, waits.p95, waits.p99))


def _charts(figures: Sequence[LoadFigures]) -> dict[str, str]:
    """By file name: what all clients get, and what one of them waits."""
    rates = {
        setting: [(each.concurrency, each.ratio.value) for each in figures if each.setting == setting]
        for setting in SETTINGS
    }
    waits = {
        setting: [
            (each.concurrency, 1e3 * each.inter_token.p95)
            for each in figures
            if each.setting == setting and each.inter_token is not None
        ]
        for setting in SETTINGS
    }
    label = "requests at once"
    charts = {
        f"{_STEM}-ratio.svg": line_chart("Tokens per second", label, "by plain decoding's", rates, True)
    }
    if all(waits.values()):
        title, unit = "From token to token", "95th percentile, ms"
        charts[f"{_STEM}-inter-token.svg"] = line_chart(title, label, unit, waits, True)
    return charts


def _data(report: LoadReport) -> dict[str, object]:
    """Without every single wait: the figures have their percentiles."""
    return {
        "machine": asdict(report.machine),
        "plan": asdict(report.plan),
        "bars": [{**asdict(bar), "verdict": bar.verdict} for bar in report.bars],
        "figures": [asdict(each) for each in report.figures],
        "windows": [_window_data(window) for window in report.windows],
    }


def _window_data(window: Window) -> dict[str, object]:
    data = asdict(window)
    del data["gaps"], data["firsts_s"]
    return data
