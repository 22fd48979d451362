"""The parts that compute in one process: what a benchmark's worker calls, one after the other."""

import gc
from typing import Literal, NamedTuple

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.aligned_pair.folders import PairFolders, ensure_pair
from benchmarks.aligned_pair.recipe import Shape
from benchmarks.scenarios.gpu.exact import measure_exactness
from benchmarks.scenarios.gpu.forward import measure_forwards
from benchmarks.scenarios.gpu.kernels import measure_kernels
from benchmarks.scenarios.gpu.plan import CPU, GPU, Device, Plan
from benchmarks.scenarios.gpu.probe import probe
from benchmarks.scenarios.gpu.results import Exactness, ForwardTimes, KernelTimes, Limits, Probe
from benchmarks.scenarios.gpu.timing import Timer, measure_limits
from services.engine.loading.device import prepare_device


class _Model(NamedTuple):
    name: str
    shape: Shape


class Rig:
    """A device and the models of the plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan.on(_device(plan.device))
        prepare_device(self._plan.device)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self._timer = Timer(self._plan.device, self._plan.measure_s)

    def plan(self) -> Plan:
        """Return the plan for the device."""
        return self._plan

    def pair(self) -> PairFolders:
        """Return the folders of the pair that is served; build it unless it exists."""
        plan = self._plan
        folders = ensure_pair(plan.pair, plan.models / f"pair-{plan.device}", plan.device)
        _release()
        return folders

    def limits(self) -> Limits:
        """Measure what the device can do."""
        found = measure_limits(self._plan.device, self._timer)
        _release()
        return found

    def probe(self) -> Probe:
        """Return the facts of the machine."""
        return probe(self._plan.device, self._timer)

    def exact(self) -> list[Exactness]:
        """Compare the engine with transformers."""
        plan = self._plan
        folders = ensure_pair(plan.chaos, plan.models / f"chaos-{plan.device}", plan.device)
        _release()
        found = measure_exactness(plan, folders.target)
        _release()
        return found

    def forward(self) -> list[ForwardTimes]:
        """Measure forwards of both models."""
        folders, found = self.pair(), list[ForwardTimes]()
        for model, folder in zip(self._models(), (folders.drafter, folders.target), strict=True):
            found.append(measure_forwards(self._plan, model.name, folder, model.shape, self._timer))
            _release()
        return found

    def kernels(self) -> list[KernelTimes]:
        """Measure forwards of both models by the kernels and by torch; nothing on a CPU."""
        folders, found = self.pair(), list[KernelTimes | None]()
        for model, folder in zip(self._models(), (folders.drafter, folders.target), strict=True):
            found.append(measure_kernels(self._plan, model.name, folder, model.shape, self._timer))
            _release()
        return [each for each in found if each is not None]

    def _models(self) -> tuple[_Model, _Model]:
        """Return drafter and target: the smaller model first, so that its figures come early."""
        pair = self._plan.pair
        return _Model("drafter", pair.drafter), _Model("target", pair.target)


def _device(wanted: Device | Literal["auto"]) -> Device:
    """Return the device that the plan's `auto` stands for."""
    if wanted == "auto":
        return GPU if torch.cuda.is_available() else CPU
    return wanted


def _release() -> None:
    """Give memory back to the device, for the next part or another process."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
