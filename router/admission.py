"""Bounded concurrency: so many requests decode, so many wait, the rest is told to come back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fly.errors import Overloaded

_RETRY_AFTER_S = 1.0


class Admission:
    """Places for requests, given in the order of arrival."""

    def __init__(self, max_concurrent: int, max_queued: int) -> None:
        self._places = asyncio.Semaphore(max_concurrent)
        self._max_queued = max_queued
        self.queued = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Holds a place; waits for one within the bounded queue.

        Raises:
            Overloaded: The queue is full.
        """
        await self._acquire()
        try:
            yield
        finally:
            self._places.release()

    async def _acquire(self) -> None:
        if self._places.locked() and self.queued >= self._max_queued:
            raise Overloaded(f"{self.queued} requests are waiting already", _RETRY_AFTER_S)
        self.queued += 1
        try:
            await self._places.acquire()
        finally:
            self.queued -= 1
