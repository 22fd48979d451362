"""Places of an engine: open sequences, and those that wait in line, by priority and then by arrival."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fly.errors import NotReady, Overloaded
from fly.messages import Queued
from services.engine.future import WaitReport

RETRY_AFTER_S = 1.0

_Waiting = tuple[int, int, asyncio.Future[None]]


class Places:
    """A limited number of places, with a limited line.

    Attributes:
        taken: Places that are taken.
    """

    def __init__(self, max_sequences: int, max_queued: int) -> None:
        self._max_sequences, self._max_queued = max_sequences, max_queued
        self._line: list[_Waiting] = []
        self._arrivals = itertools.count()
        self._is_closed = False
        self.taken = 0

    @property
    def queued(self) -> int:
        """Number of those that wait."""
        return sum(not future.done() for _, _, future in self._line)

    @asynccontextmanager
    async def take(
        self, priority: int, report: WaitReport | None = None, waits: bool = True
    ) -> AsyncIterator[None]:
        """Take a place for the time of the context; call `report` before waiting for one.

        Raises:
            Overloaded: The line is full, or it would have to wait and `waits` is False.
            NotReady: The places are closed.
        """
        if self._is_closed:
            raise NotReady("the engine is not running")
        if self.taken < self._max_sequences:
            self.taken += 1
        else:
            await self._wait(priority, report, waits)
        try:
            yield
        finally:
            self._give_back()

    def close(self) -> None:
        """End all waits with `NotReady`, and refuse later ones."""
        self._is_closed = True
        for _, _, future in self._line:
            if not future.done():
                future.set_exception(NotReady("the engine stops"))

    async def _wait(self, priority: int, report: WaitReport | None, waits: bool) -> None:
        if not waits or self.queued >= self._max_queued:
            message = f"{self.taken} sequences are open and {self.queued} are queued"
            raise Overloaded(message, RETRY_AFTER_S)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (-priority, next(self._arrivals), future))
        try:
            if report is not None:
                await report(Queued())
            await future
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._give_back()
            future.cancel()
            raise

    def _give_back(self) -> None:
        """Pass the place to the first in line, if anybody waits."""
        while self._line:
            _, _, future = heapq.heappop(self._line)
            if not future.done():
                future.set_result(None)
                return
        self.taken -= 1
