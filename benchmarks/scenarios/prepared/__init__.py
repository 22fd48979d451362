"""Drafts for several likely outcomes of a verification beside drafting ahead, end to end (10 minutes)."""

from functools import partial

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.acceleration.measure import Runs, measure_settings, sender
from benchmarks.scenarios.prepared.plan import PARTS, Plan
from benchmarks.scenarios.prepared.report import make_report
from benchmarks.scenarios.prepared.systems import running

__all__ = ["Plan", "run"]


def run(plan: Plan, context: Context) -> Report:
    """Measure every pair; all ways of drafting and all draft lengths take turns."""
    runs = {
        part: context.parts.measure(part, Runs, partial(_measure, part, plan, context))
        for part in context.chosen(PARTS)
    }
    return make_report(plan, context.machine, runs)


def _measure(part: str, plan: Plan, context: Context) -> Runs:
    with running(part, plan) as (clients, prompts):
        sends = {
            setting.name: sender(clients[setting.way], setting.speculation, plan.max_new_tokens)
            for setting in plan.settings()
        }
        return measure_settings(sends, prompts, plan.repeat, False, partial(context.interleave, part))
