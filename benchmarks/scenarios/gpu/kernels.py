"""Forwards by the kernels of `gpu_kernels` and by torch alone, by turns: the judge of the kernels."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.aligned_pair.recipe import Shape
from benchmarks.scenarios.gpu.engine import load, new_slot, rows_of
from benchmarks.scenarios.gpu.forward import ids_of, model_name
from benchmarks.scenarios.gpu.plan import GPU, Case, Plan
from benchmarks.scenarios.gpu.results import KernelTime, KernelTimes
from benchmarks.scenarios.gpu.timing import Timer
from services.engine.config import Dtype
from services.engine.forward.torch_runner import TorchRunner


def measure_kernels(plan: Plan, name: str, folder: Path, shape: Shape, timer: Timer) -> KernelTimes | None:
    """Load a model twice and measure its forwards; None on a CPU, for which Triton does not compile."""
    if plan.device != GPU:
        return None
    from gpu_kernels.parts import KERNELS

    runners = [load(folder, plan.device, Dtype.BFLOAT16, plan.cases, parts) for parts in (None, KERNELS)]
    times = [KernelTime(case, *_forwards_s(runners, case, timer)) for case in plan.cases]
    return KernelTimes(model_name(name, plan.pair, shape), times)


def _forwards_s(runners: Sequence[TorchRunner], case: Case, timer: Timer) -> list[float]:
    """Return the seconds of a forward with its head by each of the runners."""
    ids, seconds = ids_of(case.rows), list[float]()
    for runner in runners:
        slots = [new_slot(runner, case.context + case.rows) for _ in range(case.sequences)]
        batch = [rows_of(slot, ids, case.context) for slot in slots]
        seconds.append(timer.median_s(partial(runner.forward, batch)))
        for slot in slots:
            runner.free(slot)
    return seconds
