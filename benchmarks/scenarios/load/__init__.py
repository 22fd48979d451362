"""Under load: 1 to 64 requests, overload, balancing, telemetry, a single process (45 minutes)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType

from benchmarks.harness.command import BasePlan, Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.load import balancing, levels, overload, single_process, telemetry
from benchmarks.scenarios.load.balancing import Plan as BalancingPlan
from benchmarks.scenarios.load.levels import Plan as LevelsPlan
from benchmarks.scenarios.load.overload import Plan as OverloadPlan
from benchmarks.scenarios.load.single_process import Plan as SinglePlan
from benchmarks.scenarios.load.telemetry import Plan as TelemetryPlan

__all__ = ["PARTS", "Plan", "run"]

PARTS: Mapping[str, ModuleType] = {
    "levels": levels,
    "overload": overload,
    "balancing": balancing,
    "telemetry": telemetry,
    "single_process": single_process,
}
"""The parts by name: each has a plan of its own, and `run`."""


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The plans of the parts, as in `--set overload.places=8`."""

    levels: LevelsPlan = field(default_factory=LevelsPlan)
    overload: OverloadPlan = field(default_factory=OverloadPlan)
    balancing: BalancingPlan = field(default_factory=BalancingPlan)
    telemetry: TelemetryPlan = field(default_factory=TelemetryPlan)
    single_process: SinglePlan = field(default_factory=SinglePlan)


def run(plan: Plan, context: Context) -> Report:
    """Measure part after part, and report them together."""
    reports = {part: PARTS[part].run(getattr(plan, part), context) for part in context.chosen(tuple(PARTS))}
    return Report.joined("load", "Under load", plan, reports)
