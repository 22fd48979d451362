"""Objects in processes of their own, with threads of their own for torch, whose methods a scenario calls."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from flyserve.core.errors import NotReady

_made: Any = None
"""The object of this process, if it is a worker."""


class Worker:
    """A process with one object; one call runs at a time."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def submit(self, method: str, *arguments: Any) -> "Future[Any]":
        """Call a method of the object; return the future of what it returns."""
        return self._pool.submit(_call, method, arguments)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object, and return what it returns.

        Raises:
            NotReady: The method failed, or the process ended.
        """
        return _result(self.submit(method, *arguments))


@contextmanager
def worker(make: Callable[..., object], *arguments: object, threads: int = 1) -> Iterator[Worker]:
    """Yield a worker with the object that `make` returns; its process ends with the block.

    Raises:
        NotReady: The object could not be made.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        _result(pool.submit(_make, make, arguments, threads))
        yield Worker(pool)


def _result(future: "Future[Any]") -> Any:
    try:
        return future.result()
    except Exception as error:
        raise NotReady(f"a benchmark's worker failed: {type(error).__name__}: {error}") from error


def _make(make: Callable[..., object], arguments: tuple[object, ...], threads: int) -> None:
    global _made
    # NOTE: the module of `make` is imported by now; simulated objects need no torch, whose import takes 2 s.
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(threads)
    _made = make(*arguments)


def _call(method: str, arguments: tuple[object, ...]) -> Any:
    return getattr(_made, method)(*arguments)
