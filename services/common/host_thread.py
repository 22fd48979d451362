"""The host of a Ray actor: on its own thread, at the interface that reaches the registry."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from services.common.host import FAILED_GRACE_S, Host


class HostThread:
    """A host on its own event loop and thread: for a Ray actor, which serves from its constructor on."""

    def __init__(
        self, build: Callable[[], Awaitable[Host]], on_failure: Callable[[], None] | None = None
    ) -> None:
        """Build the host on its loop and start it; raise what building raises.

        `on_failure` is called on the loop after a host that failed has been drained.
        """
        import uvloop

        self._on_failure = on_failure
        self._stopping = threading.Lock()
        self._watch: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self.host: Host
        self._thread = threading.Thread(target=self.loop.run_forever, name="grpc-host", daemon=True)
        self._thread.start()
        try:
            self.host = self._run(self._started(build))
        except BaseException:
            self._end_loop()
            raise

    def stop(self, grace_s: float) -> None:
        """Drain the host and end its thread; a second call waits for the first one."""
        with self._stopping:
            if not self.loop.is_closed():
                self._run(self._stopped(grace_s))
                self._end_loop()

    async def _started(self, build: Callable[[], Awaitable[Host]]) -> Host:
        host = await build()
        await host.start()
        if self._on_failure is not None:
            self._watch = asyncio.create_task(self._end_with(host, self._on_failure))
        return host

    async def _stopped(self, grace_s: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await self.host.drain(grace_s)

    @staticmethod
    async def _end_with(host: Host, on_failure: Callable[[], None]) -> None:
        await host.failed.wait()
        await host.drain(FAILED_GRACE_S)
        on_failure()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def _end_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
