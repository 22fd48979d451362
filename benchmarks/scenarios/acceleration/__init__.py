"""Accelerators of drafting: sub-drafters, look-up, predictions, memory, vocabularies (40 minutes)."""

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.harness.runs import Runs
from benchmarks.scenarios.acceleration.measure import MEASURES, is_here
from benchmarks.scenarios.acceleration.plan import Plan
from benchmarks.scenarios.acceleration.report import make_report

__all__ = ["PARTS", "Plan", "run"]

PARTS = tuple(MEASURES)


def run(plan: Plan, context: Context) -> Report:
    """Measure every part, and report them together; a part whose models are missing is left out."""
    found = dict[str, Runs]()
    for part in context.chosen(PARTS):
        if not is_here(part):
            context.say(f"{part}: left out, its models are not here: `make real` fetches them")
        else:
            found[part] = MEASURES[part](plan, context)
    return make_report(context.machine, plan, found)
