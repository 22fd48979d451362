"""The figures of each pair, and the report. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from statistics import median

from benchmarks.aligned_pair.recipe import PairRecipe
from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows, times
from benchmarks.harness.statistics import Spread, ratios, spread
from benchmarks.scenarios.peers.measure import (
    BASELINE,
    DRAFT_LENGTH,
    LOOKUP_TOKENS,
    SETTINGS,
    STREAM_METHODS,
    Plan,
    Run,
    Setting,
    StreamsRun,
)
from flyserve.bench.statistics import bootstrap


@dataclass(frozen=True, slots=True)
class PairRuns:
    """Everything measured on one pair.

    Attributes:
        alone: One request at a time, by setting.
        streams: Several concurrent requests.
    """

    name: str
    alone: Mapping[str, Sequence[Run]]
    streams: Sequence[StreamsRun]


Compared = tuple[Setting, Sequence[Run], Sequence[Run]]
"""A setting, its runs, and those of the baseline."""


def _speeds(runs: Sequence[Run]) -> Spread:
    return spread([run.tokens_per_s for run in runs])


def _ratios(runs: Sequence[Run], baseline: Sequence[Run]) -> list[list[float]]:
    """Return the ratios of speed to the baseline in the same repetition, by prompt."""
    by_prompt: dict[int, list[float]] = {}
    for run, base in zip(runs, baseline, strict=True):
        by_prompt.setdefault(run.prompt, []).append(run.tokens_per_s / base.tokens_per_s)
    return list(by_prompt.values())


def _median_of_all(groups: Sequence[Sequence[float]]) -> float:
    return median(chain.from_iterable(groups))


def _tau(runs: Sequence[Run]) -> float | None:
    taus = [run.answer.tau for run in runs if run.answer.tau is not None]
    return median(taus) if taus else None


def _same_share(runs: Sequence[Run], baseline: Sequence[Run]) -> float:
    pairs = zip(runs, baseline, strict=True)
    return sum(run.answer.tokens == base.answer.tokens for run, base in pairs) / len(runs)


ALONE: tuple[Figure[Compared], ...] = (
    Figure("name", lambda c: c[0].name, {"": "{}"}),
    Figure("place", lambda c: c[0].place.value),
    Figure("tokens_per_s", lambda c: _speeds(c[1]), {"tokens/s": "{.value:.1f}"}),
    Figure(
        "ratio",
        lambda c: bootstrap(_ratios(c[1], c[2]), _median_of_all),
        {f"by {BASELINE}": TIMES, "95% interval": AROUND},
    ),
    Figure(
        "ratio_spread",
        lambda c: spread(list(chain.from_iterable(_ratios(c[1], c[2])))),
        {"least to most": "{0.least:.2f} to {0.most:.2f}"},
    ),
    Figure("tau", lambda c: _tau(c[1]), {"tau": "{:.2f}"}),
    Figure("same_share", lambda c: _same_share(c[1], c[2]), {"same": "{:.0%}"}),
)
"""The figures of one request at a time under one setting."""

STREAMS: tuple[Figure[tuple[str, int, Sequence[float], Sequence[float]]], ...] = (
    Figure("method", lambda c: c[0]),
    Figure("streams", lambda c: c[1]),
    Figure("tokens_per_s", lambda c: spread(c[2])),
    Figure("ratio", lambda c: median(ratios(c[2], c[3]))),
)
"""The figures of concurrent requests: from method, number of streams, rates, and those of plain decoding."""


def summarize_alone(runs: Mapping[str, Sequence[Run]]) -> list[Row]:
    """Return the figures of every setting that was measured; the baseline is among them."""
    found = [setting for setting in SETTINGS if setting.name in runs]
    return make_rows(ALONE, [(each, runs[each.name], runs[BASELINE]) for each in found])


def summarize_streams(runs: Sequence[StreamsRun]) -> list[Row]:
    """Return the figures of every count and method; plain decoding is among the methods."""
    rates: dict[tuple[int, str], list[float]] = {}
    for run in sorted(runs, key=lambda run: (run.streams, STREAM_METHODS.index(run.method))):
        rates.setdefault((run.streams, run.method), []).append(run.tokens_per_s)
    return make_rows(
        STREAMS, [(method, count, found, rates[count, "plain"]) for (count, method), found in rates.items()]
    )


def streams_table(title: str, figures: Sequence[Row]) -> Table:
    """Return a table with a row per number of concurrent requests and a column per method."""
    methods = [method for method in STREAM_METHODS if any(each.method == method for each in figures)]
    cells = {(each.streams, each.method): _streams_cell(each) for each in figures}
    counts = sorted({each.streams for each in figures})
    rows = tuple((str(count), *(cells[count, method] for method in methods)) for count in counts)
    return Table(title, ("streams", *(f"{method}, tokens/s" for method in methods)), rows)


def _streams_cell(figures: Row) -> str:
    rate = f"{figures.tokens_per_s.value:.1f}"
    return rate if figures.method == "plain" else f"{rate} ({times(figures.ratio)})"


def make_report(machine: Machine, plan: Plan, pairs: Sequence[PairRuns]) -> Report:
    """Return the report; its data have every run, without its tokens."""
    measured, data = [], []
    for pair in pairs:
        title = f"{pair.name} pair, one request at a time"
        alone, streams = summarize_alone(pair.alone), summarize_streams(pair.streams)
        runs = {name: [_run_data(run) for run in found] for name, found in pair.alone.items()}
        data.append({"name": pair.name, "alone": alone, "streams": streams, "runs": runs})
        together = streams_table(f"{pair.name} pair, concurrent requests through the stack", streams)
        bars = bar_chart(title, "tokens/s", {each.name: each.tokens_per_s for each in alone})
        measured.append((pair, Table.of(title, ALONE, alone), together, bars))
    return Report("peers", machine, plan, pairs=data).fill(
        draft_length=DRAFT_LENGTH,
        lookup_tokens=LOOKUP_TOKENS,
        baseline=BASELINE,
        recipe=PairRecipe(),
        measured=measured,
    )


def _run_data(run: Run) -> dict[str, object]:
    return {**asdict(run.answer), "prompt": run.prompt, "tokens": len(run.answer.tokens)}
