"""Acceleration of drafting: sub-drafters, predictions, drafting ahead, draft lengths (25 minutes)."""

from functools import partial

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.acceleration.measure import PARTS, Plan, Runs
from benchmarks.scenarios.acceleration.report import make_report

__all__ = ["PARTS", "Plan", "run"]


def run(plan: Plan, context: Context) -> Report:
    """Measure every part, and report them together."""
    parts = context.chosen(tuple(PARTS))
    runs = {name: context.parts.measure(name, Runs, partial(PARTS[name], plan, context)) for name in parts}
    return make_report(context.machine, plan, runs)
