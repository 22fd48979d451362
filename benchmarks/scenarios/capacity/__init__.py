"""Large deployments, simulated: drafters in a tier or beside targets, 1 to 64 replicas (40 minutes)."""

from functools import partial

from benchmarks.harness.client import Block
from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.capacity.measure import Measured, Placements, measure_levels, measure_sizes
from benchmarks.scenarios.capacity.plan import PLACEMENTS, REPLICAS, ROUTER, Plan
from benchmarks.scenarios.capacity.report import Found, make_report
from benchmarks.scenarios.capacity.router import measure_router
from fly.errors import ConfigError

__all__ = ["PARTS", "Plan", "run"]

PARTS = (PLACEMENTS, REPLICAS, ROUTER)


def run(plan: Plan, context: Context) -> Report:
    """Measure all placements side by side, then deployments of every size, then a router's CPU time."""
    if plan.drafters >= plan.groups:
        raise ConfigError(
            f"--set drafters: is {plan.drafters}; groups is {plan.groups}, and one must be left for a target"
        )
    chosen, measured = context.chosen(PARTS), context.parts.measure
    found = Found()
    if PLACEMENTS in chosen:
        for number, levels in enumerate(plan.levels):
            windows = partial(measure_levels, plan, context, levels)
            found.placements.update(measured(f"levels-{number}", Placements, windows))
    if REPLICAS in chosen:
        for number, stage in enumerate(plan.stages):
            sizes = partial(measure_sizes, plan, context, stage)
            found.replicas.extend(measured(f"stage-{number}", list[Measured], sizes))
    if ROUTER in chosen:
        found.router.update(measured(ROUTER, dict[str, list[Block]], partial(measure_router, plan, context)))
    return make_report(plan, context.machine, found)
