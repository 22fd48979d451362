"""The figures of each pair and of the engine alone, and the report. Pure."""

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
    WaysRun,
)
from flyserve.bench.statistics import bootstrap


@dataclass(frozen=True, slots=True)
class PairRuns:
    """Everything measured on one pair.

    Attributes:
        computes: Description of the engine, by model.
        weight_bytes: Bytes that the target reads per token of plain decoding.
        limit_bytes_per_s: Rate at which this machine reads weights, the best of two measurements.
        alone: One request at a time, by setting.
        streams: Several concurrent requests.
        kinds: Kind of each prompt, in order; empty if all are of one kind.
    """

    name: str
    computes: Mapping[str, str]
    weight_bytes: int
    limit_bytes_per_s: float
    alone: Mapping[str, Sequence[Run]]
    streams: Sequence[StreamsRun]
    kinds: Sequence[str] = ()


Compared = tuple[Setting, Sequence[Run], Sequence[Run], float]
"""A setting, its runs, those of the baseline, and the seconds of reading all weights once."""


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


def _spread_ms(seconds: Spread) -> str:
    return f"{1e3 * seconds.value:.0f} ({1e3 * seconds.least:.0f} to {1e3 * seconds.most:.0f})"


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
    Figure(
        "limit_share",
        lambda c: _speeds(c[1]).value * c[3] if c[0].is_plain else None,
        {"limit": "{:.0%}"},
    ),
    Figure("same_share", lambda c: _same_share(c[1], c[2]), {"same": "{:.0%}"}),
)
"""The figures of one request at a time under one setting; the limit only counts for plain decoding."""

STREAMS: tuple[Figure[tuple[str, int, Sequence[float], Sequence[float]]], ...] = (
    Figure("method", lambda c: c[0]),
    Figure("streams", lambda c: c[1]),
    Figure("tokens_per_s", lambda c: spread(c[2])),
    Figure("ratio", lambda c: median(ratios(c[2], c[3]))),
)
"""The figures of concurrent requests: from method, number of streams, rates, and those of plain decoding."""

KINDS: tuple[Figure[tuple[str, Setting, Sequence[Run], Sequence[Run]]], ...] = (
    Figure("kind", lambda c: c[0]),
    Figure("name", lambda c: c[1].name),
    Figure("tokens", lambda c: sum(len(run.answer.tokens) for run in c[2])),
    Figure("ratio", lambda c: _median_of_all(_ratios(c[2], c[3]))),
    Figure("tau", lambda c: _tau(c[2])),
)
"""The figures of one kind of prompt: from the kind, a setting, its runs, and those of the baseline."""

ENGINE: tuple[Figure[tuple[WaysRun, WaysRun]], ...] = (
    Figure("dtype", lambda c: c[0].dtype),
    Figure("rows", lambda c: c[0].rows),
    Figure("way", lambda c: c[0].way),
    Figure("what", lambda c: f"{c[0].dtype}, {c[0].rows} rows, {c[0].way}", {"16 sequences verified": "{}"}),
    Figure("seconds", lambda c: spread(c[0].seconds), {"ms (least to most)": _spread_ms}),
    Figure(
        "batched_gain",
        lambda c: median(ratios(c[0].seconds, c[1].seconds)),
        {"batched is faster by": "{:.2f}x"},
    ),
)
"""The figures of the engine alone: from a way of verifying and the batched way."""


def summarize_alone(runs: Mapping[str, Sequence[Run]], limit_s_per_token: float) -> list[Row]:
    """Return the figures of every setting that was measured.

    Args:
        runs: By the setting's name; with the baseline, and the same prompts and repetitions in each.
        limit_s_per_token: Seconds in which this machine can read the target's weights once.
    """
    found = [setting for setting in SETTINGS if setting.name in runs]
    return make_rows(ALONE, [(each, runs[each.name], runs[BASELINE], limit_s_per_token) for each in found])


def summarize_kinds(runs: Mapping[str, Sequence[Run]], kinds: Sequence[str]) -> list[Row]:
    """Return the figures of every setting on the prompts of each kind."""
    found = [setting for setting in SETTINGS if setting.name in runs]
    return make_rows(
        KINDS,
        [
            (kind, each, _of_kind(runs[each.name], kinds, kind), _of_kind(runs[BASELINE], kinds, kind))
            for kind in dict.fromkeys(kinds)
            for each in found
        ],
    )


def _of_kind(runs: Sequence[Run], kinds: Sequence[str], kind: str) -> list[Run]:
    return [run for run in runs if kinds[run.prompt] == kind]


def kinds_table(title: str, figures: Sequence[Row]) -> Table:
    """Return a table with a row per setting and a column per kind of prompt."""
    kinds = list(dict.fromkeys(each.kind for each in figures))
    cells = {(each.name, each.kind): _kind_cell(each) for each in figures}
    names = list(dict.fromkeys(each.name for each in figures))
    rows = tuple((name, *(cells[name, kind] for kind in kinds)) for name in names)
    return Table(title, ("", *kinds), rows)


def _kind_cell(figures: Row) -> str:
    tau = "" if figures.tau is None else f", tau {figures.tau:.1f}"
    return f"{times(figures.ratio)}{tau}"


def summarize_streams(runs: Sequence[StreamsRun]) -> list[Row]:
    """Return the figures of every count and method; plain decoding is among the methods."""
    rates: dict[tuple[int, str], list[float]] = {}
    for run in sorted(runs, key=lambda run: (run.streams, STREAM_METHODS.index(run.method))):
        rates.setdefault((run.streams, run.method), []).append(run.tokens_per_s)
    return make_rows(
        STREAMS, [(method, count, found, rates[count, "plain"]) for (count, method), found in rates.items()]
    )


def summarize_engine(runs: Sequence[WaysRun]) -> list[Row]:
    """Return the figures of every compute type, number of rows and way."""
    batched = {(run.dtype, run.rows): run for run in runs if run.way == "batched"}
    return make_rows(ENGINE, [(run, batched[run.dtype, run.rows]) for run in runs])


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


def make_report(machine: Machine, plan: Plan, pairs: Sequence[PairRuns], engine: Sequence[WaysRun]) -> Report:
    """Return the report; its data have every run, without its tokens."""
    name = "peers" if plan.dtype == "bfloat16" else f"peers-{plan.dtype}"
    figures = summarize_engine(engine)
    measured, data = [], []
    for pair in pairs:
        title = f"{pair.name} pair, one request at a time"
        alone = summarize_alone(pair.alone, pair.weight_bytes / pair.limit_bytes_per_s)
        streams = summarize_streams(pair.streams)
        runs = {name: [_run_data(run) for run in found] for name, found in pair.alone.items()}
        kinds = summarize_kinds(pair.alone, pair.kinds)
        data.append({"name": pair.name, "alone": alone, "kinds": kinds, "streams": streams, "runs": runs})
        by_kind = kinds_table(f"{pair.name} pair, by kind of prompt", kinds) if kinds else None
        together = streams_table(f"{pair.name} pair, concurrent requests through the stack", streams)
        bars = bar_chart(title, "tokens/s", {each.name: each.tokens_per_s for each in alone})
        measured.append((pair, Table.of(title, ALONE, alone), by_kind, together, bars))
    return Report("peers", machine, plan, name, pairs=data, engine=figures).fill(
        draft_length=DRAFT_LENGTH,
        lookup_tokens=LOOKUP_TOKENS,
        baseline=BASELINE,
        recipe=PairRecipe(),
        measured=measured,
        ways=Table.of("the aligned pair's target alone, 256 tokens of context", ENGINE, figures),
    )


def _run_data(run: Run) -> dict[str, object]:
    return {**asdict(run.answer), "prompt": run.prompt, "tokens": len(run.answer.tokens)}
