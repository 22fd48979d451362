"""The report as Markdown, with all figures as JSON and a chart per pair."""

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers.results import PairResult, Results
from benchmarks.peers.settings import BASELINE, DRAFT_LENGTH, LOOKUP_TOKENS
from benchmarks.peers.tables import alone_table, engine_table, streams_table
from benchmarks.svg import bar_chart

_INTRODUCTION = f"""\
# Beside transformers

One run, interleaved: every prompt under every setting, in an order that rotates, after a warm-up. Every
process has one thread: each of transformers' methods its own, FlyServe's engine, drafter and rule together
(*in process*), or target, drafter, sub-drafter and router apart (*stack*, timed at the client). Greedy
decoding, drafts of {DRAFT_LENGTH}; transformers' assisted generation at its own defaults (drafts of up to 20
that end where the assistant is unsure), prompt lookup with {LOOKUP_TOKENS} tokens.

Ratios are of one prompt in one repetition to *{BASELINE}* on the same: their median, its 95% interval over
resamples of the prompts, the least and the greatest. *tau*: tokens per round with a draft. *limit*: weights
read per second by the rate at which one thread of this machine reads weights; above 100% the weights stay in
a cache. *same*: responses that equal the baseline's token for token; bfloat16 rounds one row and sixteen
differently, so that near ties change places.
"""


def write_report(results: Results, folder: Path, stem: str) -> Path:
    """Writes everything into a folder as `<stem>.md`, `.json` and `-<pair>.svg`; the Markdown's path."""
    folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps(results.as_data(), indent=1, default=str) + "\n"
    (folder / f"{stem}.json").write_text(data, encoding="utf-8")
    for pair in results.pairs:
        (folder / _chart_name(stem, pair)).write_text(chart_of(pair), encoding="utf-8")
    path = folder / f"{stem}.md"
    path.write_text("\n".join(_lines(results, stem)), encoding="utf-8")
    return path


def chart_of(pair: PairResult) -> str:
    """Tokens per second of every setting, with the least and the greatest."""
    bars = {f.name: (f.tokens_per_s.value, f.tokens_per_s.least, f.tokens_per_s.most) for f in pair.alone}
    return bar_chart(f"{pair.name} pair, one request at a time", "tokens/s", bars)


def _chart_name(stem: str, pair: PairResult) -> str:
    return f"{stem}-{pair.name}.svg"


def _lines(results: Results, stem: str) -> Iterator[str]:
    plan = results.plan
    yield _INTRODUCTION
    yield f"Machine: {results.machine.describe()}\n"
    yield (
        f"{plan.dtype}, {plan.prompts} prompts, {plan.max_new_tokens} new tokens at most,"
        f" {plan.repetitions} repetitions."
    )
    for pair in results.pairs:
        yield from _pair_lines(pair, stem)
    if results.engine:
        yield "\n## The target's engine alone\n"
        yield (
            "The aligned pair's target verifies rows of 16 sequences with 256 tokens of context: all in one"
            " forward, one by one in the same engine, one by one in transformers (`DynamicCache`, cropped)."
            " The engine also tells entropies; transformers only takes the argmax.\n"
        )
        yield from engine_table(results.engine).markdown()
    yield ""


def _pair_lines(pair: PairResult, stem: str) -> Iterator[str]:
    yield f"\n## The {pair.name} pair\n"
    yield f"This is {pair.note}.\n"
    yield (
        f"The target reads {pair.weight_bytes / 1e6:.1f} MB of weights per token; the machine reads"
        f" {pair.limit_bytes_per_s / 1e9:.1f} GB/s. Target: {pair.computes['target']}."
        f" Drafter: {pair.computes['drafter']}.\n"
    )
    yield from alone_table(pair).markdown()
    yield f"\n![Tokens per second of every setting]({_chart_name(stem, pair)})\n"
    yield "Several requests at once through the stack, tokens per second of all together (by plain):\n"
    yield from streams_table(pair).markdown()
