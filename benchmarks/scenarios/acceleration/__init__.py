"""Acceleration of drafting: sub-drafters, drafting ahead, and the choice of the draft length (20 minutes)."""

from collections.abc import Callable, Mapping
from functools import partial
from uuid import uuid4

from benchmarks.harness.client import demo_prompts, random_prompts, speculation
from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.acceleration.measure import (
    Plan,
    Run,
    Sender,
    measure_passes,
    measure_settings,
    num_pass_prompts,
)
from benchmarks.scenarios.acceleration.report import make_report
from benchmarks.scenarios.acceleration.workloads import (
    AHEAD,
    BASELINE,
    DEMO,
    DRAFTINGS,
    NON_REPEATING,
    PASSES,
    REPEATING,
    SETTINGS,
    SUFFIX,
    VOCABULARY,
    WHOLE_RESPONSE,
    Drafting,
    SubDrafting,
    ahead_name,
    demo_models,
    running_drafters,
    simulated_models,
)
from fly.types import Mode
from flyserve.bench.progress import progress_bar

__all__ = ["Plan", "run"]


Runs = dict[str, list[Run]]


def run(plan: Plan, context: Context) -> Report:
    """Measure every part, and report them together."""
    parts = context.chosen(tuple(PARTS))
    runs = {name: context.parts.measure(name, Runs, partial(PARTS[name], plan, context)) for name in parts}
    return make_report(context.machine, plan, runs)


def _run_workload(name: str, plan: Plan, context: Context) -> Runs:
    workload = plan.workload(name)
    with running_drafters(workload.make_models(), DRAFTINGS) as clients:
        senders = {
            setting.name: Sender(clients[setting.drafting], setting.speculation, workload.max_new_tokens)
            for setting in SETTINGS
        }
        interleave = partial(context.interleave, name)
        return measure_settings(
            senders, workload.prompts, plan.repeat, uuid4().hex, workload.is_remembered, interleave
        )


def _run_passes(plan: Plan, context: Context) -> Runs:
    prompts = demo_prompts(plan.pass_prompts)
    with (
        running_drafters(demo_models(), (SUFFIX.drafting, BASELINE.drafting)) as clients,
        progress_bar(context.console, num_pass_prompts(len(prompts), plan.passes), "passes") as advance,
    ):
        helped, alone = (
            Sender(clients[setting.drafting], setting.speculation, WHOLE_RESPONSE)
            for setting in (SUFFIX, BASELINE)
        )
        return measure_passes(helped, alone, prompts, plan.control_prompts, plan.passes, uuid4().hex, advance)


def _run_ahead(plan: Plan, context: Context) -> Runs:
    """Measure drafting ahead and not, with simulated engines and every draft length, in mode exact."""
    draftings = tuple(Drafting(SubDrafting.OFF, is_ahead) for is_ahead in (False, True))
    prompts = random_prompts(range(VOCABULARY), plan.ahead_pairs)
    with running_drafters(simulated_models(), draftings) as clients:
        senders = {
            ahead_name(length, way.is_ahead): Sender(
                clients[way], speculation(Mode.EXACT, length), plan.ahead_tokens, ignore_eos=True
            )
            for length in plan.ahead_lengths
            for way in draftings
        }
        interleave = partial(context.interleave, "drafting ahead")
        return measure_settings(senders, prompts, plan.repeat, uuid4().hex, False, interleave)


PARTS: Mapping[str, Callable[[Plan, Context], Runs]] = {
    DEMO: partial(_run_workload, DEMO),
    PASSES: _run_passes,
    REPEATING: partial(_run_workload, REPEATING),
    NON_REPEATING: partial(_run_workload, NON_REPEATING),
    AHEAD: _run_ahead,
}
"""The parts by name, in the order in which they are measured."""
