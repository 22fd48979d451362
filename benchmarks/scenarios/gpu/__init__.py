"""One GPU: exactness against transformers, forwards, FLy by gRPC (9 minutes)."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from benchmarks.harness.command import Context
from benchmarks.harness.report import Report
from benchmarks.harness.worker import worker
from benchmarks.scenarios.gpu.plan import Plan
from benchmarks.scenarios.gpu.report import Found, make_report
from benchmarks.scenarios.gpu.serve import measure_serving
from flyserve.core.errors import FlyServeError

__all__ = ["PARTS", "Plan", "run"]

PARTS = ("exact", "forward", "serve")
EXACT, FORWARD, SERVE = PARTS
_DEVICE = "device"
T = TypeVar("T")


def run(plan: Plan, context: Context) -> Report:
    """Measure part after part; one that fails is reported, and the next one runs."""
    failures: dict[str, str] = {}
    end = time.monotonic() + plan.total_s

    def attempt(name: str, measure: Callable[[], T]) -> T | None:
        if time.monotonic() > end:
            failures[name] = f"not begun: {plan.total_s:g} s (total_s) had passed"
            return None
        context.say(f"gpu: {name}")
        try:
            return measure()
        except FlyServeError as error:
            failures[name] = str(error)
            context.say(f"gpu: {name} failed: {error}")
            return None

    chosen, found = context.chosen(PARTS), dict[str, Any]()
    # NOTE: in a process of its own, whose end frees the GPU for the services.
    with worker(_make_rig, plan) as rig:
        actual: Plan = rig.ask("plan")
        for name in (_DEVICE, EXACT, FORWARD):
            if name in chosen or name == _DEVICE:
                found[name] = attempt(name, partial(rig.ask, name))
        folders = attempt("models", partial(rig.ask, "pair")) if SERVE in chosen else None
    if folders is not None:
        # Serving has as much time as is left.
        left = replace(actual, serve_s=min(actual.serve_s, max(1.0, end - time.monotonic())))
        found[SERVE] = attempt(SERVE, partial(measure_serving, left, folders, context))
    return make_report(context.machine, actual, Found(**found, failures=failures))


def _make_rig(plan: Plan) -> object:
    from benchmarks.scenarios.gpu.rig import Rig  # imports torch, in the worker alone

    return Rig(plan)
