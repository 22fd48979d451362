"""The figures of each pair and of the engine alone, and the report. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import Columns, Report, Table, around, times
from benchmarks.harness.statistics import Spread, ratios, spread
from benchmarks.scenarios.peers.measure import Run, StreamsRun, WaysRun
from benchmarks.scenarios.peers.settings import (
    BASELINE,
    DRAFT_LENGTH,
    LOOKUP_TOKENS,
    SETTINGS,
    STREAM_METHODS,
    Setting,
)
from flyserve.bench.statistics import Interval, bootstrap

if TYPE_CHECKING:
    from benchmarks.scenarios.peers import Plan

_INTRODUCTION = f"""
One interleaved run: every prompt is sent under every setting, in an order that rotates, after a warm-up.
Every process has one thread. Each method of transformers has its own process. FlyServe's engine, drafter and
rule share one process (*in process*), or target, drafter, sub-drafter and router are separate (*stack*, timed
at the client). Decoding is greedy with drafts of {DRAFT_LENGTH}. Assisted generation of transformers has its
own defaults (drafts of up to 20 tokens that end when the assistant is unsure), prompt lookup {LOOKUP_TOKENS}
tokens.

Ratios are relative to *{BASELINE}* on the same prompt in the same repetition: their median, its 95% interval
over resamples of the prompts, the least and the greatest. *tau*: tokens per round with a draft. *limit*:
weights read per second divided by the rate at which one thread of this machine reads weights; above 100% the
weights stay in a cache. *same*: responses that equal the baseline's token for token; bfloat16 rounds one row
and sixteen rows differently, so near ties may change.
"""


@dataclass(frozen=True, slots=True)
class PairRuns:
    """Everything measured on one pair.

    Attributes:
        note: Description of the pair.
        computes: Description of the engine, by model.
        weight_bytes: Bytes that the target reads per token of plain decoding.
        limit_bytes_per_s: Rate at which this machine reads weights, the best of two measurements.
        alone: One request at a time, by setting.
        streams: Several concurrent requests.
    """

    name: str
    note: str
    computes: Mapping[str, str]
    weight_bytes: int
    limit_bytes_per_s: float
    alone: Mapping[str, Sequence[Run]]
    streams: Sequence[StreamsRun]


@dataclass(frozen=True, slots=True)
class SettingFigures:
    """The figures of one setting.

    Attributes:
        tokens_per_s: Speed over all runs.
        ratio: Speed divided by the baseline's on the same prompt in the same repetition: the median, and its
            95% interval over resamples of the prompts.
        ratio_spread: Spread of the same ratios.
        tau: Median tokens per round with a draft; None if it is not reported.
        limit_share: Weights read per second divided by the measured limit; None unless decoding is plain.
        same_share: Share of responses that equal the baseline's, token for token.
    """

    name: str
    place: str
    tokens_per_s: Spread
    ratio: Interval
    ratio_spread: Spread
    tau: float | None
    limit_share: float | None
    same_share: float


@dataclass(frozen=True, slots=True)
class StreamsFigures:
    """Tokens per second of all concurrent requests, and the same divided by plain decoding's."""

    method: str
    streams: int
    tokens_per_s: Spread
    ratio: float


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """The engine alone: a way of verifying, its time, and that time divided by the batched one."""

    dtype: str
    rows: int
    way: str
    seconds: Spread
    batched_gain: float


def summarize_alone(runs: Mapping[str, Sequence[Run]], limit_s_per_token: float) -> list[SettingFigures]:
    """Return the figures of every setting that was measured.

    Args:
        runs: By the setting's name; with the baseline, and the same prompts and repetitions in each.
        limit_s_per_token: Seconds in which this machine can read the target's weights once.
    """
    return [
        _figures(setting, runs[setting.name], runs[BASELINE], limit_s_per_token)
        for setting in SETTINGS
        if setting.name in runs
    ]


def _figures(
    setting: Setting, runs: Sequence[Run], baseline: Sequence[Run], limit_s_per_token: float
) -> SettingFigures:
    pairs = list(zip(runs, baseline, strict=True))
    by_prompt: dict[int, list[float]] = {}
    for run, base in pairs:
        by_prompt.setdefault(run.prompt, []).append(run.tokens_per_s / base.tokens_per_s)
    speeds = spread([run.tokens_per_s for run in runs])
    taus = [run.answer.tau for run in runs if run.answer.tau is not None]
    same = sum(run.answer.tokens == base.answer.tokens for run, base in pairs)
    return SettingFigures(
        name=setting.name,
        place=setting.place.value,
        tokens_per_s=speeds,
        ratio=bootstrap(list(by_prompt.values()), _median_of_all),
        ratio_spread=spread([ratio for found in by_prompt.values() for ratio in found]),
        tau=median(taus) if taus else None,
        limit_share=speeds.value * limit_s_per_token if setting.is_plain else None,
        same_share=same / len(pairs),
    )


def _median_of_all(groups: Sequence[Sequence[float]]) -> float:
    return median(ratio for found in groups for ratio in found)


def summarize_streams(runs: Sequence[StreamsRun]) -> list[StreamsFigures]:
    """Return the figures of every count and method; plain decoding is among the methods."""
    rates: dict[tuple[int, str], list[float]] = {}
    for run in sorted(runs, key=lambda run: (run.streams, STREAM_METHODS.index(run.method))):
        rates.setdefault((run.streams, run.method), []).append(run.tokens_per_s)
    return [
        StreamsFigures(method, count, spread(found), median(ratios(found, rates[count, "plain"])))
        for (count, method), found in rates.items()
    ]


def summarize_engine(runs: Sequence[WaysRun]) -> list[EngineFigures]:
    """Return the figures of every compute type, number of rows and way."""
    batched = {(run.dtype, run.rows): run.seconds for run in runs if run.way == "batched"}
    return [
        EngineFigures(
            dtype=run.dtype,
            rows=run.rows,
            way=run.way,
            seconds=spread(run.seconds),
            batched_gain=median(ratios(run.seconds, batched[run.dtype, run.rows])),
        )
        for run in runs
    ]


_ALONE: Columns[SettingFigures] = {
    "": lambda f: f.name,
    "tokens/s": lambda f: f"{f.tokens_per_s.value:.1f}",
    f"by {BASELINE}": lambda f: times(f.ratio.value),
    "95% interval": lambda f: around(f.ratio),
    "least to most": lambda f: f"{f.ratio_spread.least:.2f} to {f.ratio_spread.most:.2f}",
    "tau": lambda f: "" if f.tau is None else f"{f.tau:.2f}",
    "limit": lambda f: "" if f.limit_share is None else f"{f.limit_share:.0%}",
    "same": lambda f: f"{f.same_share:.0%}",
}
_ENGINE: Columns[EngineFigures] = {
    "16 sequences verified": lambda f: f"{f.dtype}, {f.rows} rows, {f.way}",
    "ms (least to most)": lambda f: (
        f"{1e3 * f.seconds.value:.0f} ({1e3 * f.seconds.least:.0f} to {1e3 * f.seconds.most:.0f})"
    ),
    "batched is faster by": lambda f: times(f.batched_gain),
}


def streams_table(title: str, figures: Sequence[StreamsFigures]) -> Table:
    """Return a table with a row per number of concurrent requests and a column per method."""
    methods = [method for method in STREAM_METHODS if any(each.method == method for each in figures)]
    cells = {(each.streams, each.method): _streams_cell(each) for each in figures}
    counts = sorted({each.streams for each in figures})
    rows = tuple((str(count), *(cells[count, method] for method in methods)) for count in counts)
    return Table(title, ("streams", *(f"{method}, tokens/s" for method in methods)), rows)


def _streams_cell(figures: StreamsFigures) -> str:
    rate = f"{figures.tokens_per_s.value:.1f}"
    return rate if figures.method == "plain" else f"{rate} ({times(figures.ratio)})"


def make_report(machine: Machine, plan: Plan, pairs: Sequence[PairRuns], engine: Sequence[WaysRun]) -> Report:
    """Return the report; its data have every run, without its tokens."""
    name = "peers" if plan.dtype == "bfloat16" else f"peers-{plan.dtype}"
    report = Report(name, machine, plan, pairs=[], engine=summarize_engine(engine))
    report.introduction("FlyServe next to transformers", _INTRODUCTION)
    report.text(
        f"{plan.dtype}, {plan.prompts} prompts, at most {plan.max_new_tokens} new tokens,"
        f" {plan.repeat} repetitions."
    )
    for pair in pairs:
        _add_pair(report, pair)
    if engine:
        report.heading("The target's engine alone")
        report.text("""
The aligned pair's target verifies rows of 16 sequences with 256 tokens of context: all in one forward, one by
one in the same engine, and one by one in transformers (`DynamicCache`, cropped). The engine also reports
entropies; transformers only takes the argmax.
""")
        title = "the aligned pair's target alone, 256 tokens of context"
        report.table(Table.of(title, _ENGINE, summarize_engine(engine)))
    return report


def _add_pair(report: Report, pair: PairRuns) -> None:
    title = f"{pair.name} pair, one request at a time"
    alone = summarize_alone(pair.alone, pair.weight_bytes / pair.limit_bytes_per_s)
    streams = summarize_streams(pair.streams)
    runs = {name: [_run_data(run) for run in found] for name, found in pair.alone.items()}
    report.data["pairs"].append({"name": pair.name, "alone": alone, "streams": streams, "runs": runs})
    report.heading(f"The {pair.name} pair")
    report.text(pair.note)
    report.text(
        f"The target reads {pair.weight_bytes / 1e6:.1f} MB of weights per token; the machine reads"
        f" {pair.limit_bytes_per_s / 1e9:.1f} GB/s. Target: {pair.computes['target']}."
        f" Drafter: {pair.computes['drafter']}."
    )
    report.table(Table.of(title, _ALONE, alone))
    bars = {figures.name: figures.tokens_per_s for figures in alone}
    report.chart(pair.name, bar_chart(title, "tokens/s", bars), "Tokens per second of every setting")
    report.text(
        "Several concurrent requests through the stack, tokens per second of all together (by plain):"
    )
    report.table(streams_table(f"{pair.name} pair, concurrent requests through the stack", streams))


def _run_data(run: Run) -> dict[str, object]:
    return {**asdict(run.answer), "prompt": run.prompt, "tokens": len(run.answer.tokens)}
