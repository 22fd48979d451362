"""Jobs that run while the engine has nothing else to do, and that their owner may end at any time."""

from collections.abc import Awaitable, Callable

from services.engine.future import EngineFuture


class IdleJob:
    """A job that was submitted with priority `BACKGROUND`."""

    def __init__(self, future: EngineFuture, cancel: Callable[[EngineFuture], Awaitable[None]]) -> None:
        self._new_future = future
        self._cancel = cancel

    async def end(self) -> None:
        """Ends it before its next forward, unless it is over; then what it worked on is free again."""
        if not self._new_future.is_done:
            await self._cancel(self._new_future)
        self._new_future.discard()
