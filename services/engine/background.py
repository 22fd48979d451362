"""Jobs that run while the engine has nothing else to do, and that their owner may end at any time."""

from collections.abc import Awaitable, Callable

from services.engine.promise import Promise


class BackgroundJob:
    """A job that was submitted with priority `BACKGROUND`."""

    def __init__(self, promise: Promise, cancel: Callable[[Promise], Awaitable[None]]) -> None:
        self._promise = promise
        self._cancel = cancel

    async def end(self) -> None:
        """Ends it before its next forward, unless it is over; then what it worked on is free again."""
        if not self._promise.is_delivered:
            await self._cancel(self._promise)
        self._promise.discard()
