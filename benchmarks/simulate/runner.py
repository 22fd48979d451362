"""All parts of a run, in order; each is kept until the report is written."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter
from rich.console import Console

from benchmarks.parts import Parts
from benchmarks.simulate.figures import Figures, needed_dilation, summarize
from benchmarks.simulate.measure import measure_stage
from benchmarks.simulate.plan import FLY, PLAIN, Dilations, Plan, Stage
from benchmarks.simulate.profile import Profile
from benchmarks.simulate.router_cost import Block, RouterPlan, measure_router, profile_router
from flyserve.bench.progress import progress_bar

T = TypeVar("T")

_TRIAL_DILATION = 20.0
_TRIAL_S = 0.6
"""Simulated seconds."""


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that one run found.

    Attributes:
        figures: Of every deployment and setting.
        blocks: Of requests to a router that is not dilated.
        profiles: Of that router, by setting.
    """

    plan: Plan
    router_plan: RouterPlan
    dilations: Dilations
    figures: tuple[Figures, ...]
    blocks: tuple[Block, ...]
    profiles: dict[str, Profile]


def run(plan: Plan, router_plan: RouterPlan, parts: Parts, console: Console) -> Found:
    """Measures everything, with progress bars.

    Raises:
        FlyServeError: Something could not be started, or a request failed.
    """

    def part(name: str, kind: type[T], measure: Any) -> T:
        adapter = TypeAdapter(kind)
        data = parts.measure(name, lambda: adapter.dump_python(measure(), mode="json"))
        return adapter.validate_python(data)

    dilations = part("dilations", Dilations, lambda: _find_dilations(plan, console))
    figures: tuple[Figures, ...] = ()
    for number, stage in enumerate(plan.stages(dilations)):

        def measured(stage: Stage = stage) -> Sequence[Figures]:
            return _stage(plan, stage, console)

        figures += part(f"stage-{number}", tuple[Figures, ...], measured)
    blocks = part("router", tuple[Block, ...], lambda: _router(plan, router_plan, console))
    profiles = part("profile", dict[str, Profile], lambda: _profiles(plan, router_plan, console))
    return Found(plan, router_plan, dilations, figures, blocks, profiles)


def _router(plan: Plan, router_plan: RouterPlan, console: Console) -> Sequence[Block]:
    with progress_bar(console, router_plan.counted, "router, undilated") as advance:
        return tuple(measure_router(router_plan, plan.prompt_tokens, advance))


def _profiles(plan: Plan, router_plan: RouterPlan, console: Console) -> dict[str, Profile]:
    with progress_bar(console, router_plan.watched, "router's profile") as advance:
        return profile_router(router_plan, plan.prompt_tokens, advance)


def _find_dilations(plan: Plan, console: Console) -> Dilations:
    """By what the smallest deployment takes of the CPU, unless the plan says."""
    if plan.dilation is not None:
        return Dilations(plan.dilation, plan.dilation)
    trial = Stage((plan.deployment(min(plan.sizes)),), (PLAIN, FLY), _TRIAL_DILATION)
    short = replace(plan, settle_s=_TRIAL_S, measure_s=_TRIAL_S)
    with progress_bar(console, len(trial.settings), "CPU time of a replica") as advance:
        measured = measure_stage(short, trial, advance)
    smaller, largest = plan.stages(Dilations(1.0, 1.0))
    return Dilations(*(_needed(stage, measured) for stage in (smaller, largest)))


def _needed(stage: Stage, trial: Any) -> float:
    targets = sum(deployment.targets for deployment in stage.deployments)
    return needed_dilation(targets, trial, len(os.sched_getaffinity(0)))


def _stage(plan: Plan, stage: Stage, console: Console) -> Sequence[Figures]:
    label = f"{sum(each.targets for each in stage.deployments)} replicas, {stage.dilation:g} times slower"
    with progress_bar(console, len(stage.settings), label) as advance:
        return tuple(summarize(each, plan.models) for each in measure_stage(plan, stage, advance))
