"""The figures as rows of text: once for the terminal, once for Markdown."""

from collections.abc import Iterator, Sequence

from benchmarks.peers.figures import EngineFigures, SettingFigures, StreamsFigures
from benchmarks.peers.results import PairResult, Results
from benchmarks.peers.settings import BASELINE
from benchmarks.summary import Spread
from benchmarks.text_table import TextTable


def make_tables(results: Results) -> Iterator[TextTable]:
    """Every table of the report, in its order."""
    for pair in results.pairs:
        yield alone_table(pair)
        yield streams_table(pair)
    if results.engine:
        yield engine_table(results.engine)


def alone_table(pair: PairResult) -> TextTable:
    """One request at a time."""
    heads = ("", "tokens/s", f"by {BASELINE}", "95% interval", "least to most", "tau", "limit", "same")
    rows = tuple(_alone_row(figures) for figures in pair.alone)
    return TextTable(f"{pair.name} pair, one request at a time", heads, rows)


def streams_table(pair: PairResult) -> TextTable:
    """Several requests at once: a row per count, a column per method."""
    counts = sorted({figures.streams for figures in pair.streams})
    methods = list(dict.fromkeys(figures.method for figures in pair.streams))
    by_key = {(figures.streams, figures.method): figures for figures in pair.streams}
    rows = tuple(
        (str(count), *(_streams_cell(by_key[count, method]) for method in methods)) for count in counts
    )
    heads = ("streams", *(f"{method}, tokens/s" for method in methods))
    return TextTable(f"{pair.name} pair, several requests at once through the stack", heads, rows)


def engine_table(engine: Sequence[EngineFigures]) -> TextTable:
    """The engine alone."""
    rows = tuple(
        (f"{f.dtype}, {f.rows} rows, {f.way}", _milliseconds(f.seconds), f"{f.batched_gain:.2f}x")
        for f in engine
    )
    heads = ("16 sequences verified", "ms (least to most)", "batched is faster by")
    return TextTable("the aligned pair's target alone, 256 tokens of context", heads, rows)


def _alone_row(figures: SettingFigures) -> tuple[str, ...]:
    ratio, around = figures.ratio, figures.ratio_spread
    return (
        figures.name,
        f"{figures.tokens_per_s.value:.1f}",
        f"{ratio.value:.2f}x",
        f"{ratio.low:.2f} to {ratio.high:.2f}",
        f"{around.least:.2f} to {around.most:.2f}",
        "" if figures.tau is None else f"{figures.tau:.2f}",
        "" if figures.limit_share is None else f"{figures.limit_share:.0%}",
        f"{figures.same_share:.0%}",
    )


def _streams_cell(figures: StreamsFigures) -> str:
    rate = f"{figures.tokens_per_s.value:.1f}"
    return rate if figures.method == "plain" else f"{rate} ({figures.ratio:.2f}x)"


def _milliseconds(seconds: Spread) -> str:
    value, least, most = (1e3 * figure for figure in (seconds.value, seconds.least, seconds.most))
    return f"{value:.0f} ({least:.0f} to {most:.0f})"
