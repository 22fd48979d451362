"""Times of calls whose work may go on after they return."""

import time
from collections.abc import Callable
from statistics import median

import torch

from benchmarks.scenarios.gpu.plan import GPU

_WARM_UPS, _FEWEST, _MOST, _STARTS = 2, 3, 20, 5


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
