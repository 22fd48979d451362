"""Accelerators of drafting: sub-drafters, look-up, predictions, memory, vocabularies, grammars (an hour)."""

from functools import partial

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.harness.runs import Runs
from benchmarks.scenarios.acceleration.masks import MASKS, Seconds, measure_masks
from benchmarks.scenarios.acceleration.measure import MEASURES
from benchmarks.scenarios.acceleration.plan import REAL_VOCABULARY, Plan, real_models
from benchmarks.scenarios.acceleration.report import make_report

__all__ = ["PARTS", "Plan", "run"]

PARTS = (*MEASURES, MASKS)


def run(plan: Plan, context: Context) -> Report:
    """Measure every part, and report them together."""
    found, masks = dict[str, Runs](), Seconds()
    for part in context.chosen(PARTS):
        if part == MASKS:
            masks = context.parts.measure(part, Seconds, partial(measure_masks, plan, context))
        elif part == REAL_VOCABULARY and not all(folder.is_dir() for folder in real_models()):
            context.say(f"{part}: left out, its models are not here: `make real` fetches them")
        else:
            found[part] = context.parts.measure(part, Runs, partial(MEASURES[part], plan, context))
    return make_report(context.machine, plan, found, masks)
