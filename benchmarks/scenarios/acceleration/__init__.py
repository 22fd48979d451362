"""Accelerators of drafting: sub-drafters, predictions, memory, drafting ahead, free drafts (30 minutes)."""

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.acceleration.measure import MEASURES
from benchmarks.scenarios.acceleration.plan import Plan
from benchmarks.scenarios.acceleration.report import make_report

__all__ = ["PARTS", "Plan", "run"]

PARTS = tuple(MEASURES)


def run(plan: Plan, context: Context) -> Report:
    """Measure every part, and report them together."""
    found = {part: MEASURES[part](plan, context) for part in context.chosen(PARTS)}
    return make_report(context.machine, plan, found)
