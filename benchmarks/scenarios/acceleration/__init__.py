"""Acceleration of drafting: sub-drafters, drafting ahead, and the choice of the draft length (20 minutes)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from uuid import uuid4

from benchmarks.harness.client import demo_prompts, random_prompts, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.report import Report
from benchmarks.scenarios.acceleration.measure import (
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
    Workload,
    ahead_name,
    demo_models,
    make_workload,
    running_drafters,
    simulated_models,
)
from fly.types import Mode
from flyserve.bench.progress import progress_bar

__all__ = ["Plan", "run"]


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        repeat: Repetitions of every prompt under every setting.
        demo_prompts: Problems that the demo pair answers under every setting.
        aligned_prompts: Prompts that each of the aligned pairs continues under every setting.
        aligned_tokens: New tokens of each.
        passes: Second passes, each compared with a first pass at the same time.
        pass_prompts: Problems of a pass.
        control_prompts: The first of these problems, which are also passed without a sub-drafter.
        ahead_pairs: Responses of the simulated engines under every setting.
        ahead_tokens: New tokens of each.
        ahead_lengths: Draft lengths; the best one counts, with drafting ahead and without.
    """

    repeat: int = 1
    demo_prompts: Annotated[int, Quick(4)] = 60
    aligned_prompts: Annotated[int, Quick(2)] = 12
    aligned_tokens: Annotated[int, Quick(64)] = 192
    passes: Annotated[int, Quick(1)] = 7
    pass_prompts: Annotated[int, Quick(10)] = 100
    control_prompts: Annotated[int, Quick(2)] = 20
    ahead_pairs: Annotated[int, Quick(2)] = 7
    ahead_tokens: Annotated[int, Quick(64)] = 192
    ahead_lengths: Annotated[tuple[int, ...], Quick((8,))] = (4, 6, 8, 10)

    def workload(self, part: str) -> Workload:
        """Return the text and the models of a part."""
        if part == DEMO:
            return make_workload(part, self.demo_prompts, WHOLE_RESPONSE)
        return make_workload(part, self.aligned_prompts, self.aligned_tokens)


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
