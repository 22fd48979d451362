"""FlyServe next to transformers, vLLM, llama.cpp: the same prompts, one thread each, in turn (an hour)."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

from benchmarks.aligned_pair.recipe import PairRecipe
from benchmarks.harness.command import Context
from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import Report, Table, make_rows
from benchmarks.harness.runs import FIGURES, Runs, measure_settings
from benchmarks.scenarios.peers.plan import BASELINE, DRAFT_LENGTH, LOOKUP_TOKENS, REAL, Plan, load_pair
from benchmarks.scenarios.peers.ways import running_ways
from demo.real.fetch import SMOLLM2, is_fetched

__all__ = ["PARTS", "Plan", "run"]

PARTS = ("demo", "aligned", REAL)
_SHOWN = ("tokens/s", "relative to the first", "95% interval", "tau", "same")


def run(plan: Plan, context: Context) -> Report:
    """Measure each pair in every place."""
    pairs = dict[str, Runs]()
    for name in context.chosen(PARTS):
        if name == REAL and not is_fetched(SMOLLM2):
            context.say(f"{REAL}: left out, its model is not here: `make real` fetches it")
        else:
            pairs[name] = _run_pair(name, plan, context)
    return make_report(context.machine, plan, pairs)


def _run_pair(name: str, plan: Plan, context: Context) -> Runs:
    pair = load_pair(name, plan.prompts)
    with running_ways(pair, plan, context) as ways:
        return measure_settings(ways, pair.prompts, plan.repeat, False, partial(context.interleave, name))


def make_report(machine: Machine, plan: Plan, pairs: Mapping[str, Runs]) -> Report:
    """Return the report of the pairs by name; its data have every run."""
    figures = {
        pair: make_rows(FIGURES, [(name, own, runs[BASELINE]) for name, own in runs.items()])
        for pair, runs in pairs.items()
    }
    measured = [
        (
            pair,
            Table.of(f"{pair} pair", FIGURES, rows),
            bar_chart(f"{pair} pair", "tokens/s", {each.name: each.tokens_per_s for each in rows}),
        )
        for pair, rows in figures.items()
    ]
    data = {
        pair: {name: list(map(asdict, own)) for name, own in runs.items()} for pair, runs in pairs.items()
    }
    return Report("peers", machine, plan, figures=figures, runs=data).fill(
        draft_length=DRAFT_LENGTH,
        lookup_tokens=LOOKUP_TOKENS,
        baseline=BASELINE,
        recipe=PairRecipe(),
        measured=measured,
        shown=_SHOWN,
    )
