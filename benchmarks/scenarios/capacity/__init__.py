"""Large deployments, simulated: 1 to 64 replicas of a target, with their drafters (30 minutes)."""

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.capacity.measure import measure_stage
from benchmarks.scenarios.capacity.plan import Plan
from benchmarks.scenarios.capacity.report import make_report

__all__ = ["Plan", "run"]


def run(plan: Plan, context: Context) -> Report:
    """Measure deployments of every size."""
    found = [measured for stage in plan.stages for measured in measure_stage(plan, context, stage)]
    return make_report(plan, context.machine, found)
