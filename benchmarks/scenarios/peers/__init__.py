"""FlyServe next to llama.cpp, transformers, vLLM and the published loop, in one table (40 minutes)."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from benchmarks.harness.command import Context
from benchmarks.harness.machine import Machine
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.program import Program
from benchmarks.harness.report import Report, make_rows
from benchmarks.harness.runs import FIGURES, Parts, Runs, measure_parts, measure_settings
from benchmarks.harness.workloads import workload_source
from benchmarks.scenarios.peers.plan import BASELINE, DEMO, DRAFT_LENGTH, LOOKUP_TOKENS, Plan, load_pair
from benchmarks.scenarios.peers.plan import PARTS as _PARTS
from benchmarks.scenarios.peers.table import BEST_PUBLISHED, all_ways, make_goals, whole, winners
from benchmarks.scenarios.peers.ways import running_ways
from demo.real.fetch import SMOLLM2, is_fetched
from flyserve.bench.statistics import speed

__all__ = ["PARTS", "Plan", "run"]

PARTS = tuple(_PARTS)


def run(plan: Plan, context: Context) -> Report:
    """Measure each model with each number of threads."""
    needs_source = any(_PARTS[part][0] != DEMO for part in context.chosen(PARTS))
    with workload_source(context) if needs_source else nullcontext() as source:
        parts = measure_parts(context, PARTS, lambda part: _measure(part, plan, context, source))
    return make_report(context.machine, plan, parts)


def _measure(part: str, plan: Plan, context: Context, source: Program | None) -> dict[str, Runs]:
    if _PARTS[part][0] != DEMO and not is_fetched(SMOLLM2):
        context.leave_out(f"{part}: left out, its model is not here: `make real` fetches it")
        return {}
    pair = load_pair(part, plan.prompts, source)
    with running_ways(pair, plan, context) as ways:
        return {
            kind: measure_settings(
                ways, prompts, plan.repeat, False, partial(context.interleave, f"{part}, {kind}")
            )
            for kind, prompts in pair.prompts.items()
        }


def make_report(machine: Machine, plan: Plan, parts: Parts) -> Report:
    """Return the report of the measured parts; its data have every run."""
    figures = {
        part: {kind: _figures(runs) for kind, runs in tables.items()} for part, tables in parts.items()
    }
    charts = [(part, _chart(part, tables)) for part, tables in parts.items()]
    return Report("peers", replace(machine, threads=None), plan, figures=figures, runs=parts).fill(
        draft_length=DRAFT_LENGTH,
        lookup_tokens=LOOKUP_TOKENS,
        baseline=BASELINE,
        best_published=BEST_PUBLISHED,
        winners=winners(parts),
        all_ways=all_ways(parts),
        targets=make_goals(parts),
        charts=charts,
    )


def _figures(runs: Runs) -> list[object]:
    return list(make_rows(FIGURES, [(name, own, runs[BASELINE]) for name, own in runs.items()]))


def _chart(part: str, tables: Mapping[str, Runs]) -> str:
    return bar_chart(part, "tokens/s", {name: speed(own) for name, own in whole(tables).items()})
