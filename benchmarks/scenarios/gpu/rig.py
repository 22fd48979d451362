"""The parts that compute in one process: what a benchmark's worker calls, one after the other."""

import gc
import shutil
import subprocess
from typing import Literal

import torch
from transformers.utils import logging as transformers_logging

from benchmarks.aligned_pair.folders import PairFolders, ensure_pair
from benchmarks.scenarios.gpu.exact import measure_exactness
from benchmarks.scenarios.gpu.forward import measure_forwards
from benchmarks.scenarios.gpu.plan import CPU, GPU, Plan
from benchmarks.scenarios.gpu.results import Device, Exactness, ForwardTime
from benchmarks.scenarios.gpu.timing import Timer, read_bytes_per_s
from services.engine.loading.device import prepare_device


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

    def device(self) -> Device:
        """Measure the limits of the device."""
        plan, kind = self._plan, torch.device(self._plan.device)
        num_bytes, width = (1 << 32, 8192) if plan.device == GPU else (1 << 24, 256)
        square = torch.randn(width, width, device=kind, dtype=torch.bfloat16)
        product_s = self._timer.median_s(lambda: square @ square)
        read_rate = read_bytes_per_s(plan.device, num_bytes)
        _release()
        return Device(_gpu_name() if plan.device == GPU else "", read_rate, 2 * width**3 / product_s)

    def exact(self) -> list[Exactness]:
        """Compare the engine with transformers."""
        plan = self._plan
        folders = ensure_pair(plan.chaos, plan.models / f"chaos-{plan.device}", plan.device)
        _release()
        found = measure_exactness(plan, folders.target)
        _release()
        return found

    def forward(self) -> list[ForwardTime]:
        """Measure forwards of both models: the smaller one first, so that its figures come early."""
        folders, pair, found = self.pair(), self._plan.pair, list[ForwardTime]()
        for name, shape, folder in (
            ("drafter", pair.drafter, folders.drafter),
            ("target", pair.target, folders.target),
        ):
            found += measure_forwards(self._plan, name, folder, shape, self._timer)
            _release()
        return found


def _device(wanted: Literal["auto", "cpu", "cuda"]) -> Literal["cpu", "cuda"]:
    """Return the device that the plan's `auto` stands for."""
    if wanted == "auto":
        return GPU if torch.cuda.is_available() else CPU
    return wanted


def _release() -> None:
    """Give memory back to the device, for the next part or another process."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _gpu_name() -> str:
    """Return a sentence about the GPU, its driver and the libraries that compute on it."""
    found, tool, driver = torch.cuda.get_device_properties(0), shutil.which("nvidia-smi"), "unknown"
    if tool is not None:
        query = (tool, "--query-gpu=driver_version", "--format=csv,noheader")
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
        driver = done.stdout.split("\n")[0].strip() or driver
    return (
        f"{found.name}, {found.total_memory / 1e9:.0f} GB, {found.multi_processor_count} multiprocessors;"
        f" driver {driver}, CUDA {torch.version.cuda}."
    )
