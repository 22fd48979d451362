"""Likely outcomes of a round: how often the next start is one of few, and what preparing them could give."""

from functools import partial

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.outcomes.ceiling import Costs
from benchmarks.scenarios.outcomes.costs import measure_costs, simulated_costs
from benchmarks.scenarios.outcomes.plan import ALIGNED, DEMO, Plan, Setting
from benchmarks.scenarios.outcomes.ranking import Answer, rank
from benchmarks.scenarios.outcomes.record import Pair, load_pair
from benchmarks.scenarios.outcomes.report import Found, make_report

__all__ = ["Plan", "run"]
PARTS = (DEMO, ALIGNED)


def run(plan: Plan, context: Context) -> Report:
    """Record the rounds of each pair, rank their outcomes, measure the pair's forwards."""
    found: Found = {}
    costs: dict[str, list[Costs]] = {}
    for name in context.chosen(PARTS):
        pair = load_pair(name, plan)
        for setting in plan.settings(name):
            found[setting] = context.parts.measure(
                setting.name, list[Answer], partial(_record, pair, plan, context, setting)
            )
        measured = context.parts.measure(f"{name}-costs", Costs, partial(measure_costs, pair, plan, context))
        costs[name] = [measured, simulated_costs(plan)] if name == DEMO else [measured]
    return make_report(plan, context.machine, found, costs)


def _record(pair: Pair, plan: Plan, context: Context, setting: Setting) -> list[Answer]:
    responses = context.interleave(setting.name, (setting,), len(pair.prompts), pair.record, warm_ups=0)[
        setting
    ]
    return rank(responses)
