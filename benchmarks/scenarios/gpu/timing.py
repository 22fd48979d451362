"""Times of calls whose work may go on after they return."""

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.scenarios.gpu.plan import GPU
from services.engine.loading.forward_costs import minimum_s

_WARM_UPS, _FEWEST, _MOST, _STARTS = 2, 3, 20, 5
_PROBE_COLUMNS, _GPU_PRODUCTS = 4096, 16
"""Columns of the weights of a probe, and its products on a GPU, which hide the time of a start."""


class Timer:
    """Measure each call repeatedly, for `longest_s` or a little more."""

    def __init__(self, device: str, longest_s: float) -> None:
        self._device, self._longest_s = device, longest_s

    def start_s(self, run: Callable[[], object]) -> float:
        """Return the median seconds until a call returns; its work is not awaited."""
        seconds = median(self._once_s(run, is_awaited=False) for _ in range(_STARTS))
        self._sync()
        return seconds

    def median_s(self, run: Callable[[], object]) -> float:
        """Return the median seconds of several calls with their work, after two that do not count."""
        for _ in range(_WARM_UPS):
            self._once_s(run)
        seconds: list[float] = []
        started = time.perf_counter()
        while len(seconds) < _MOST:
            seconds.append(self._once_s(run))
            if len(seconds) >= _FEWEST and time.perf_counter() - started > self._longest_s:
                break
        return median(seconds)

    def _once_s(self, run: Callable[[], object], is_awaited: bool = True) -> float:
        self._sync()
        start = time.perf_counter()
        run()
        if is_awaited:
            self._sync()
        return time.perf_counter() - start

    def _sync(self) -> None:
        if self._device == GPU:
            torch.cuda.synchronize()


def read_bytes_per_s(device: str, num_bytes: int) -> float:
    """Return the rate at which matrix-vector products read weights.

    Where bfloat16 is computed slowly, as without its instructions, float32 shows the limit of memory.
    """
    return max(_read_rate(kind, device, num_bytes) for kind in (torch.bfloat16, torch.float32))


def _read_rate(dtype: torch.dtype, device: str, num_bytes: int) -> float:
    columns = min(_PROBE_COLUMNS, num_bytes // dtype.itemsize)
    weight = torch.full((num_bytes // dtype.itemsize // columns, columns), 0.5, dtype=dtype, device=device)
    row = torch.ones(1, columns, dtype=dtype, device=device)
    num_products = _GPU_PRODUCTS if device == GPU else 1

    def read() -> None:
        for _ in range(num_products):
            product = F.linear(row, weight)
        product[0, 0].item()  # waits until the device has finished

    return num_products * weight.numel() * dtype.itemsize / minimum_s(read)
