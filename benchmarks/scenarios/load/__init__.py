"""Under load: 1 to 64 requests, also of two deployments in turn, and overload (20 minutes)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType

from benchmarks.harness.command import BasePlan, Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.load import levels, overload
from benchmarks.scenarios.load.levels import Plan as LevelsPlan
from benchmarks.scenarios.load.overload import Plan as OverloadPlan

__all__ = ["PARTS", "Plan", "run"]

PARTS: Mapping[str, ModuleType] = {"levels": levels, "overload": overload}
"""The parts by name: each has a plan of its own, and `run`."""


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The plans of the parts, as in `--set overload.places=8`."""

    levels: LevelsPlan = field(default_factory=LevelsPlan)
    overload: OverloadPlan = field(default_factory=OverloadPlan)


def run(plan: Plan, context: Context) -> Report:
    """Measure part after part, and report them together."""
    reports = {part: PARTS[part].run(getattr(plan, part), context) for part in context.chosen(tuple(PARTS))}
    return Report.joined("load", "Under load", plan, reports)
