"""Answers from the engine's thread to coroutines that await them."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any


class Promise:
    """An answer that a coroutine awaits and the engine gives, on whatever thread.

    Attributes:
        loop: The event loop of the coroutine.
        result: What was given, once it was.
    """

    __slots__ = ("_future", "error", "loop", "result")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.result: Any = None
        self.error: BaseException | None = None
        self._future: asyncio.Future[Any] = self.loop.create_future()

    async def wait(self) -> Any:
        """The answer; raises what was given as an error."""
        return await self._future

    @property
    def is_delivered(self) -> bool:
        """The answer is there."""
        return self._future.done()

    def discard(self) -> None:
        """Nobody will wait for the answer; an error in it goes unreported."""
        if not self._future.cancel() and not self._future.cancelled():
            self._future.exception()

    def deliver(self) -> None:
        """Wakes the coroutine; on its own loop only."""
        if self._future.done():
            return
        if self.error is None:
            self._future.set_result(self.result)
        else:
            self._future.set_exception(self.error)


def deliver_all(promises: Sequence[Promise]) -> None:
    """Wakes the coroutines from another thread: one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Promise]] = {}
    for promise in promises:
        by_loop.setdefault(promise.loop, []).append(promise)
    for loop, group in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            loop.call_soon_threadsafe(_deliver, group)


def _deliver(promises: Sequence[Promise]) -> None:
    for promise in promises:
        promise.deliver()
