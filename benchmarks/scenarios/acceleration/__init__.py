"""Acceleration of drafting: sub-drafters, drafting ahead, and the choice of the draft length (20 minutes)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from benchmarks.harness.command import Context
from benchmarks.harness.prompts import demo_prompts, random_prompts
from benchmarks.harness.report import Report
from benchmarks.scenarios.acceleration.measure import (
    Run,
    Sender,
    measure_passes,
    measure_settings,
    num_pass_prompts,
    num_requests,
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
    ahead_speculation,
    demo_models,
    make_workload,
    running_drafters,
    simulated_models,
)
from flyserve.bench.progress import progress_bar

__all__ = ["Plan", "run"]


@dataclass(frozen=True, slots=True)
class Plan:
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
    demo_prompts: int = 60
    aligned_prompts: int = 12
    aligned_tokens: int = 192
    passes: int = 7
    pass_prompts: int = 100
    control_prompts: int = 20
    ahead_pairs: int = 7
    ahead_tokens: int = 192
    ahead_lengths: tuple[int, ...] = (4, 6, 8, 10)

    def quick(self) -> "Plan":
        """Return a plan of a few minutes."""
        return replace(
            self,
            demo_prompts=4,
            aligned_prompts=2,
            aligned_tokens=64,
            passes=1,
            pass_prompts=10,
            control_prompts=2,
            ahead_pairs=2,
            ahead_tokens=64,
            ahead_lengths=(8,),
        )

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
    total = num_requests(len(SETTINGS), len(workload.prompts), plan.repeat)
    with (
        running_drafters(workload.make_models(), DRAFTINGS) as clients,
        progress_bar(context.console, total, name) as advance,
    ):
        senders = {
            setting.name: Sender(clients[setting.drafting], setting.speculation, workload.max_new_tokens)
            for setting in SETTINGS
        }
        return measure_settings(
            senders, workload.prompts, plan.repeat, uuid4().hex, workload.is_remembered, advance
        )


def _run_passes(plan: Plan, context: Context) -> Runs:
    prompts = demo_prompts(plan.pass_prompts)
    total = num_pass_prompts(len(prompts), plan.passes)
    with (
        running_drafters(demo_models(), (SUFFIX.drafting, BASELINE.drafting)) as clients,
        progress_bar(context.console, total, "passes, problems") as advance,
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
    total = num_requests(len(draftings) * len(plan.ahead_lengths), len(prompts), plan.repeat)
    with (
        running_drafters(simulated_models(), draftings) as clients,
        progress_bar(context.console, total, "drafting ahead") as advance,
    ):
        senders = {
            ahead_name(length, way.is_ahead): Sender(
                clients[way], ahead_speculation(length), plan.ahead_tokens, ignore_eos=True
            )
            for length in plan.ahead_lengths
            for way in draftings
        }
        return measure_settings(senders, prompts, plan.repeat, uuid4().hex, False, advance)


PARTS: Mapping[str, Callable[[Plan, Context], Runs]] = {
    DEMO: partial(_run_workload, DEMO),
    PASSES: _run_passes,
    REPEATING: partial(_run_workload, REPEATING),
    NON_REPEATING: partial(_run_workload, NON_REPEATING),
    AHEAD: _run_ahead,
}
"""The parts by name, in the order in which they are measured."""
