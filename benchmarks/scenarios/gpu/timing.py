"""Times of a device, and the rates that limit its forwards."""

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F

from benchmarks.scenarios.gpu.plan import GPU
from benchmarks.scenarios.gpu.results import Limits
from services.engine.loading.bandwidth import minimum_s

_WARM_UPS, _FEWEST, _MOST, _STARTS = 2, 3, 20, 5
_LINEAR_ROWS = (1, 4, 16, 64, 256)
_ROTATED = 4
"""Weights that take turns, so that no cache holds them."""
_OPERATORS = 500
_PROBE_COLUMNS, _GPU_PRODUCTS = 4096, 16
"""Columns of the weights of a probe, and its products on a GPU, which hide the time of a start."""


class Timer:
    """Measure calls whose work may go on after they return."""

    def __init__(self, device: str, longest_s: float) -> None:
        """Measure each call repeatedly, for `longest_s` or a little more."""
        self._device, self._longest_s = device, longest_s

    def sync(self) -> None:
        """Wait until the device has nothing left to do."""
        if self._device == GPU:
            torch.cuda.synchronize()

    def once_s(self, run: Callable[[], object]) -> float:
        """Return the seconds of one call, until the device has done its work."""
        self.sync()
        start = time.perf_counter()
        run()
        self.sync()
        return time.perf_counter() - start

    def start_s(self, run: Callable[[], object]) -> float:
        """Return the median seconds until a call returns; its work is not awaited."""

        def once() -> float:
            self.sync()
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

        seconds = median(once() for _ in range(_STARTS))
        self.sync()
        return seconds

    def median_s(self, run: Callable[[], object]) -> float:
        """Return the median seconds of several calls, after two that do not count."""
        for _ in range(_WARM_UPS):
            self.once_s(run)
        seconds: list[float] = []
        started = time.perf_counter()
        while len(seconds) < _MOST:
            seconds.append(self.once_s(run))
            if len(seconds) >= _FEWEST and time.perf_counter() - started > self._longest_s:
                break
        return median(seconds)


def measure_limits(device: str, timer: Timer) -> Limits:
    """Measure what the device can do."""
    is_gpu = device == GPU
    num_bytes, width = (1 << 32, 8192) if is_gpu else (1 << 24, 256)
    source = torch.zeros(num_bytes // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = timer.median_s(lambda: target.copy_(source))
    square = torch.randn(width, width, device=device, dtype=torch.bfloat16)
    product_s = timer.median_s(lambda: square @ square)
    return Limits(
        read_bytes_per_s=max(_read_rate(kind, device, num_bytes) for kind in (torch.bfloat16, torch.float32)),
        copy_bytes_per_s=2 * source.nbytes / copy_s,
        flops=2 * width**3 / product_s,
        operator_s=_operator_s(device, timer),
        linear_bytes_per_s=_linear_rates(device, timer, (28672, 4096) if is_gpu else (512, 256)),
    )


def _read_rate(dtype: torch.dtype, device: str, num_bytes: int) -> float:
    """Return the bytes per second at which matrix-vector products read weights.

    Where bfloat16 is computed slowly, as without its instructions, float32 shows the limit of memory.
    """
    columns = min(_PROBE_COLUMNS, num_bytes // dtype.itemsize)
    weight = torch.full((num_bytes // dtype.itemsize // columns, columns), 0.5, dtype=dtype, device=device)
    row = torch.ones(1, columns, dtype=dtype, device=device)
    num_products = _GPU_PRODUCTS if device == GPU else 1

    def read() -> None:
        for _ in range(num_products):
            product = F.linear(row, weight)
        product[0, 0].item()  # waits until the device has finished

    return num_products * weight.numel() * dtype.itemsize / minimum_s(read)


def _operator_s(device: str, timer: Timer) -> float:
    small = torch.zeros(16, device=device)

    def run() -> None:
        for _ in range(_OPERATORS):
            small.add_(1.0)

    return timer.start_s(run) / _OPERATORS


def _linear_rates(device: str, timer: Timer, size: tuple[int, int]) -> dict[int, float]:
    weights = [torch.randn(size, device=device, dtype=torch.bfloat16) for _ in range(_ROTATED)]
    num_bytes = sum(weight.nbytes for weight in weights)

    def rate(num_rows: int) -> float:
        rows = torch.randn(num_rows, size[1], device=device, dtype=torch.bfloat16)
        return num_bytes / timer.median_s(lambda: [F.linear(rows, weight) for weight in weights])

    return {num_rows: rate(num_rows) for num_rows in _LINEAR_ROWS}
