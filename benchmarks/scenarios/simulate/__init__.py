"""A large deployment, simulated: 1 to 64 replicas of 70B on H200s in dilated time; a router's CPU time."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks.harness.client import Block
from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.scenarios.simulate.figures import Measured, needed_dilation, summarize
from benchmarks.scenarios.simulate.measure import measure_stage
from benchmarks.scenarios.simulate.plan import FLY, PLAIN, Dilations, Plan, Stage
from benchmarks.scenarios.simulate.report import Found, make_report
from benchmarks.scenarios.simulate.router import Profile, measure_router, profile_router
from flyserve.bench.progress import progress_bar

__all__ = ["Plan", "run"]

_TRIAL_DILATION = 20.0
_TRIAL_S = 0.6
"""Simulated seconds of the trial that finds the dilation."""


def run(plan: Plan, context: Context) -> Report:
    """Measure all deployments, then a router without dilation."""
    measure = context.parts.measure
    dilations = measure("dilations", Dilations, partial(_find_dilations, plan, context))
    measured: list[Measured] = []
    for number, stage in enumerate(plan.stages(dilations)):
        measured += measure(f"stage-{number}", list[Measured], partial(_stage, plan, stage, context))
    blocks = measure("router", list[Block], partial(measure_router, plan, context))
    profiles = measure("profile", dict[str, Profile], partial(profile_router, plan, context))
    figures = summarize(measured, min(plan.sizes))
    return make_report(context.machine, plan, Found(dilations, figures, blocks, profiles))


def _find_dilations(plan: Plan, context: Context) -> Dilations:
    """Return the plan's dilation, or find one by the CPU time of the smallest deployment."""
    if plan.dilation is not None:
        return Dilations(plan.dilation, plan.dilation)
    trial = Stage((plan.deployment(min(plan.sizes)),), (PLAIN, FLY), _TRIAL_DILATION)
    short = replace(plan, settle_s=_TRIAL_S, measure_s=_TRIAL_S)
    with progress_bar(context.console, len(trial.settings), "CPU time of a replica") as advance:
        measured = measure_stage(short, trial, advance)
    smaller, largest = plan.stages(Dilations(1.0, 1.0))
    return Dilations(_needed(smaller, measured), _needed(largest, measured))


def _needed(stage: Stage, trial: Sequence[Measured]) -> float:
    return needed_dilation(stage.num_targets, trial, len(os.sched_getaffinity(0)))


def _stage(plan: Plan, stage: Stage, context: Context) -> list[Measured]:
    label = f"{stage.num_targets} replicas, {stage.dilation:g} times slower"
    with progress_bar(context.console, len(stage.settings), label) as advance:
        return measure_stage(plan, stage, advance)
