"""Clocks as a dependency, so that tests can replace the system clock by a virtual one."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock on which a coroutine can wait."""

    def now(self) -> float:
        """Return seconds since an arbitrary start."""

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` have passed on this clock."""


class SystemClock:
    """The monotonic clock of the machine; with a dilation of 10, each of its seconds lasts ten real ones."""

    def __init__(self, dilation: float = 1.0) -> None:
        self._dilation = dilation

    def now(self) -> float:
        return time.perf_counter() / self._dilation

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._dilation)
