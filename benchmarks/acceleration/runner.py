"""Starts what a part needs, measures it, and hands it over as plain data."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

from rich.console import Console

from benchmarks.acceleration.measure import (
    measure_passes,
    measure_settings,
    num_pass_prompts,
    num_requests,
)
from benchmarks.acceleration.plan import Plan
from benchmarks.acceleration.runs import Request, runs_as_data
from benchmarks.acceleration.services import running_services
from benchmarks.acceleration.settings import (
    AHEAD,
    BASELINE,
    DEMO,
    DRAFTINGS,
    NON_REPEATING,
    PASSES,
    REPEATING,
    SETTINGS,
    SUFFIX,
    Drafting,
    SubDrafting,
)
from benchmarks.acceleration.simulation import VOCABULARY, ahead_name, simulated_models
from benchmarks.acceleration.workloads import WHOLE_RESPONSE, WORKLOADS, demo_models
from benchmarks.progress import progress_bar
from benchmarks.prompts import demo_prompts, random_prompts
from fly.request import DraftLength, SpeculationParams
from fly.types import Mode

Data = dict[str, list[dict[str, Any]]]


def run_workload(name: str, plan: Plan, console: Console) -> Data:
    """Every setting on one of `WORKLOADS`, with a progress bar.

    Raises:
        FlyServeError: Something could not be started, or rejected a request.
    """
    workload = WORKLOADS[name](plan)
    prompts = workload.make_prompts()
    total = num_requests(len(SETTINGS), len(prompts), 1)
    with (
        running_services(workload.make_models(), DRAFTINGS) as clients,
        progress_bar(console, total, name) as advance,
    ):
        asks = {
            setting.name: Request(clients[setting.drafting], setting.speculation, workload.max_new_tokens)
            for setting in SETTINGS
        }
        runs = measure_settings(asks, prompts, 1, _salt(), workload.is_remembered, advance)
    return runs_as_data(runs)


def run_passes(plan: Plan, console: Console) -> Data:
    """First and second passes of the demo pair.

    Raises:
        FlyServeError: Something could not be started, or rejected a request.
    """
    prompts = demo_prompts(plan.pass_prompts)
    total = num_pass_prompts(len(prompts), plan.passes)
    with (
        running_services(demo_models(), (SUFFIX.drafting, BASELINE.drafting)) as clients,
        progress_bar(console, total, "passes, problems") as advance,
    ):
        helped, alone = (
            Request(clients[setting.drafting], setting.speculation, WHOLE_RESPONSE)
            for setting in (SUFFIX, BASELINE)
        )
        runs = measure_passes(helped, alone, prompts, plan.control_prompts, plan.passes, _salt(), advance)
    return runs_as_data(runs)


def run_ahead(plan: Plan, console: Console) -> Data:
    """Drafting ahead and not, with simulated engines and every draft length, in mode exact.

    Raises:
        FlyServeError: Something could not be started, or rejected a request.
    """
    draftings = tuple(Drafting(SubDrafting.OFF, is_ahead) for is_ahead in (False, True))
    prompts = random_prompts(VOCABULARY, plan.ahead_pairs)
    total = num_requests(len(draftings) * len(plan.ahead_lengths), len(prompts), 1)
    with (
        running_services(simulated_models(), draftings) as clients,
        progress_bar(console, total, "drafting ahead") as advance,
    ):
        asks = {
            ahead_name(length, way.is_ahead): Request(
                clients[way],
                SpeculationParams(mode=Mode.EXACT, draft_length=DraftLength(max=length)),
                plan.ahead_tokens,
                ignore_eos=True,
            )
            for length in plan.ahead_lengths
            for way in draftings
        }
        runs = measure_settings(asks, prompts, 1, _salt(), False, advance)
    return runs_as_data(runs)


PARTS: Mapping[str, Callable[[Plan, Console], Data]] = {
    DEMO: partial(run_workload, DEMO),
    PASSES: run_passes,
    REPEATING: partial(run_workload, REPEATING),
    NON_REPEATING: partial(run_workload, NON_REPEATING),
    AHEAD: run_ahead,
}
"""By name, in the order in which they are measured."""


def _salt() -> str:
    return uuid4().hex
