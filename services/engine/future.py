"""Results that pass from the engine's thread to the coroutines that await them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


class EngineFuture:
    """A result that a coroutine awaits and the engine sets, on any thread.

    Attributes:
        error: Exception to raise in the coroutine, if there is one.
    """

    __slots__ = ("_future", "error", "loop", "result")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.result: Any = None
        self.error: BaseException | None = None
        self._future: asyncio.Future[Any] = self.loop.create_future()

    async def wait(self) -> Any:
        """Return the result, or raise the error."""
        return await self._future

    @property
    def is_done(self) -> bool:
        """True once the result was delivered or the future discarded."""
        return self._future.done()

    def discard(self) -> None:
        """Cancel the wait; an error that was set is not reported."""
        if not self._future.cancel() and not self._future.cancelled():
            self._future.exception()

    def deliver(self) -> None:
        """Wake the coroutine; must be called on its own loop."""
        if self._future.done():
            return
        if self.error is None:
            self._future.set_result(self.result)
        else:
            self._future.set_exception(self.error)


class IdleJob:
    """A job that runs only while the engine has nothing else to do (`IDLE_PRIORITY`)."""

    def __init__(self, future: EngineFuture, cancel: Callable[[EngineFuture], Awaitable[None]]) -> None:
        self._future = future
        self._cancel = cancel

    async def cancel(self) -> None:
        """End the job before its next forward; when this returns, its sequence may be used again."""
        if not self._future.is_done:
            await self._cancel(self._future)
        self._future.discard()


def deliver_all(futures: Sequence[EngineFuture]) -> None:
    """Wake the coroutines from another thread, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[EngineFuture]] = {}
    for future in futures:
        by_loop.setdefault(future.loop, []).append(future)
    for loop, group in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop has been closed, so nothing awaits the results
            loop.call_soon_threadsafe(_deliver, group)


def _deliver(futures: Sequence[EngineFuture]) -> None:
    for future in futures:
        future.deliver()
