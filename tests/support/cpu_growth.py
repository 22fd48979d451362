"""The growth of CPU time with the size of the input: a comparison, so that no machine is too slow."""

import gc
import time
from collections.abc import Callable

_ATTEMPTS = 5
_MOST_GROWTH = 8.0
"""Four times the input: linear work takes 4 times as long, quadratic work up to 16 times."""


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """Assert that `work` on four times the size takes about four times as long, in one of several attempts.

    The clock of a busy virtual machine counts some of its waiting, too. Quadratic work is so every time.
    """
    found = []
    for _ in range(_ATTEMPTS):
        less, more = _cpu_s(work, size), _cpu_s(work, 4 * size)
        if more <= _MOST_GROWTH * less:
            return
        found.append((less, more))
    raise AssertionError(found)


def _cpu_s(work: Callable[[int], object], size: int) -> float:
    gc.collect()
    gc.disable()
    try:
        started = time.thread_time()
        work(size)
        return time.thread_time() - started
    finally:
        gc.enable()
