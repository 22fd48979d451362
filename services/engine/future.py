"""Results that pass from the engine's thread to the coroutines that await them."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from flyserve.core.messages import Opened, Queued

WaitReport = Callable[[Queued | Opened], Awaitable[None]]
"""Is called with `Queued` when a sequence begins to wait for a place or memory, and with `Opened` after, and
after each forward of a long prompt."""


Delivery = tuple[asyncio.AbstractEventLoop, Callable[[], None]]
"""An event loop, and a function that it calls to wake a coroutine."""


class EngineFuture:
    """A result that a coroutine awaits and the engine sets, on any thread.

    Attributes:
        error: Exception to raise in the coroutine, if there is one.
        work: The job or the sequence that the engine makes for it, which only the engine uses.
        is_done: True once the result was delivered or the future discarded.
        is_queued: True for the open of a sequence that has to wait for its place.
    """

    __slots__ = ("_notices", "_wake", "error", "is_done", "is_queued", "loop", "result", "work")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.result: Any = None
        self.work: object = None
        self.error: BaseException | None = None
        self.is_done = self.is_queued = False
        self._notices = deque[Queued | Opened]()
        self._wake: asyncio.Future[None] | None = None

    async def wait(self, report: WaitReport | None = None) -> Any:
        """Return the result, or raise the error; until then call `report` when the sequence has to wait."""
        while self._notices or not self.is_done:
            if not self._notices:
                self._wake = self.loop.create_future()
                await self._wake
            elif report is None:
                self._notices.clear()
            else:
                await report(self._notices.popleft())
        if self.error is not None:
            raise self.error
        return self.result

    def discard(self) -> None:
        """End the wait; neither the result nor an error is reported."""
        self._notices.clear()
        self.deliver()

    def deliver(self) -> None:
        """Wake the coroutine; must be called on its own loop."""
        self.is_done = True
        self._wake_up()

    def notify(self, notice: Queued | Opened) -> None:
        """Let the coroutine report a notice; must be called on its own loop.

        Of several forwards of a prompt that it has not reported yet it reports one: a client takes few
        messages at once.
        """
        if isinstance(notice, Opened) and self._notices and isinstance(self._notices[-1], Opened):
            return
        self._notices.append(notice)
        self._wake_up()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


class IdleJob:
    """A job that runs only while the engine has nothing else to do (`IDLE_PRIORITY`)."""

    def __init__(self, future: EngineFuture, cancel: Callable[[EngineFuture], Awaitable[None]]) -> None:
        self._future = future
        self._cancel = cancel

    @property
    def is_done(self) -> bool:
        """True if it has ended by itself."""
        return self._future.is_done

    async def cancel(self) -> None:
        """End the job before its next forward; when this returns, its sequence may be used again."""
        if not self.is_done:
            await self._cancel(self._future)
        self._future.discard()


def deliver_all(deliveries: Sequence[Delivery]) -> None:
    """Wake the coroutines from another thread, with one wake-up per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Delivery]] = {}
    for delivery in deliveries:
        by_loop.setdefault(delivery[0], []).append(delivery)
    for loop, group in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop has been closed, so nothing awaits the results
            loop.call_soon_threadsafe(deliver_here, group)


def deliver_here(deliveries: Sequence[Delivery]) -> None:
    """Wake the coroutines, which are those of this event loop."""
    for _, deliver in deliveries:
        deliver()
