"""One GPU: probe, exactness against transformers, forwards against the limit, FLy by gRPC (10 minutes)."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from benchmarks.aligned_pair.folders import PairFolders
from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.harness.worker import Worker, worker
from benchmarks.scenarios.gpu.plan import Plan
from benchmarks.scenarios.gpu.report import Found, make_report
from benchmarks.scenarios.gpu.results import (
    Exactness,
    ForwardTimes,
    KernelTimes,
    Limits,
    Probe,
    Served,
)
from benchmarks.scenarios.gpu.serve import measure_serving
from fly.errors import FlyServeError

__all__ = ["PARTS", "Plan", "run"]

PARTS = ("probe", "exact", "forward", "kernels", "serve")
PROBE, EXACT, FORWARD, KERNELS, SERVE = PARTS
_LIMITS = "limits"
_KINDS: dict[str, Any] = {
    _LIMITS: Limits,
    PROBE: Probe,
    EXACT: list[Exactness],
    FORWARD: list[ForwardTimes],
    KERNELS: list[KernelTimes],
}
"""Parts that compute in one process, with the types of their results."""
T = TypeVar("T")


def run(plan: Plan, context: Context) -> Report:
    """Measure part after part; one that fails is reported, and the next one runs."""
    failures: dict[str, str] = {}
    end = time.monotonic() + plan.total_s

    def attempt(name: str, kind: type[T], measure: Callable[[], T]) -> T | None:
        if time.monotonic() > end:
            failures[name] = f"not begun: {plan.total_s:g} s (total_s) had passed"
            return None
        context.say(f"gpu: {name}")
        try:
            return context.parts.measure(name, kind, measure)
        except FlyServeError as error:
            failures[name] = str(error)
            context.say(f"gpu: {name} failed: {error}")
            return None

    chosen, found = context.chosen(PARTS), dict[str, Any]()
    # NOTE: in a process of its own, whose end frees the GPU for the services.
    with worker(_make_rig, plan) as rig:
        actual: Plan = rig.ask("plan")
        for name, kind in _KINDS.items():
            if name in chosen or name == _LIMITS:
                found[name] = attempt(name, kind, partial(rig.ask, name))
        folders = attempt("models", PairFolders, lambda: _pair(rig)) if SERVE in chosen else None
    if folders is not None:
        found[SERVE] = attempt(
            SERVE, list[Served], lambda: measure_serving(_shortened(actual, end), folders, context)
        )
    return make_report(context.machine, actual, Found(**found, chosen=tuple(chosen), failures=failures))


def _shortened(plan: Plan, end: float) -> Plan:
    """Return the plan with as much time for serving as is left."""
    return replace(plan, serve_s=min(plan.serve_s, max(1.0, end - time.monotonic())))


def _make_rig(plan: Plan) -> object:
    from benchmarks.scenarios.gpu.rig import Rig  # imports torch, in the worker alone

    return Rig(plan)


def _pair(rig: Worker) -> PairFolders:
    folders: PairFolders = rig.ask("pair")
    return folders
