"""Clients by speed: a shared drafter tier against a drafter beside each target (about 12 minutes)."""

from functools import partial

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.capacity.measure import measure_levels
from benchmarks.scenarios.capacity.plan import Found, Plan
from benchmarks.scenarios.capacity.report import make_report
from fly.errors import ConfigError

__all__ = ["Plan", "run"]


def run(plan: Plan, context: Context) -> Report:
    """Measure all placements side by side, one number of clients after the other."""
    if plan.drafters >= plan.groups:
        raise ConfigError(
            f"--set drafters: is {plan.drafters}; groups is {plan.groups}, and one must be left for a target"
        )
    found: Found = {}
    for number, levels in enumerate(plan.levels):
        found |= context.parts.measure(
            f"levels-{number}", Found, partial(measure_levels, plan, context, levels)
        )
    return make_report(plan, context.machine, found)
