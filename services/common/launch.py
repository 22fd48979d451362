"""Run a service in this process: print its address when it is ready, drain it on a signal."""

import asyncio
import contextlib
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from flyserve.core.errors import FlyServeError
from flyserve.signals import stop_signals
from services.common.flags import fail
from services.common.garbage import exempt_from_collection
from services.common.host import FAILED_GRACE_S, Host
from services.common.service_config import ProcessSection
from services.common.telemetry.logs import configure_logging

logger = logging.getLogger(__name__)

EXIT_FAILED = 1


def run_service(build: Callable[[], Awaitable[Host]], config: ProcessSection, role: str) -> None:
    """Serve until a stop signal; a bad configuration is one line on stderr and exit status 2.

    A signal cancels `build`, and the process ends without waiting for its threads. A service that fails ends
    the process with exit status 1, for its supervisor to start another.
    """
    import uvloop

    configure_logging(config.telemetry, role)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(build, config.grace_s))
    except FlyServeError as error:
        fail(str(error))
    except asyncio.CancelledError:
        stop_signals.leave()


async def _serve(build: Callable[[], Awaitable[Host]], grace_s: float) -> None:
    async with stop_events() as stop:
        host = await build()
        await serve_until_stopped(
            host, grace_s, stop, lambda addresses: print(f"ready {' '.join(addresses)}", flush=True)
        )
    if host.failed.is_set():
        sys.exit(EXIT_FAILED)


class StopEvents:
    """The stop signals on an event loop: they cancel a task that starts, and end what serves.

    Attributes:
        requested: Set by the first signal of a process that serves.
        hurried: Set by the next one, which ends the grace period.
    """

    def __init__(self) -> None:
        self.requested, self.hurried = asyncio.Event(), asyncio.Event()
        self._starting = asyncio.current_task()

    def begin_serving(self) -> None:
        """Let the signals set the events from now on; the process has no time limit any more."""
        self._starting = None
        stop_signals.begin_serving()

    def announce(self) -> None:
        """Say at once that a service that starts is stopped; in the handler, as the loop may be busy."""
        if self._starting is not None:
            stop_signals.announce()

    def receive(self) -> None:
        """Act on a signal; on the event loop."""
        if self._starting is not None:
            self._starting.cancel()
        elif not self.requested.is_set():
            self.requested.set()
        else:
            self.hurried.set()


@contextlib.asynccontextmanager
async def stop_events() -> AsyncIterator[StopEvents]:
    """Receive the stop signals on the running event loop while the block runs; they cancel this task."""
    stop, loop = StopEvents(), asyncio.get_running_loop()

    def receive() -> None:
        stop.announce()
        loop.call_soon_threadsafe(stop.receive)

    with stop_signals.delivered_to(receive):
        yield stop


async def serve_until_stopped(
    host: Host,
    grace_s: float,
    stop: StopEvents,
    on_ready: Callable[[Sequence[str]], None],
    on_stop: Callable[[], object] = lambda: None,
) -> None:
    """Serve until a stop signal, then drain; a second signal ends the grace period.

    A host that has failed is drained as well, within `FAILED_GRACE_S`. `on_ready` receives its addresses;
    `on_stop` is called before a host that has not failed is drained.
    """
    await host.start()
    exempt_from_collection()
    stop.begin_serving()
    on_ready(host.addresses)
    waits = [asyncio.create_task(event.wait()) for event in (stop.requested, host.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if host.failed.is_set():
        grace_s = FAILED_GRACE_S
    else:
        logger.info("stopping: received %s; running calls have %g s to finish", stop_signals.name, grace_s)
        on_stop()
    drain = asyncio.create_task(host.drain(grace_s))
    hurried = asyncio.create_task(stop.hurried.wait())
    await asyncio.wait({drain, hurried}, return_when=asyncio.FIRST_COMPLETED)
    if not drain.done():
        drain.cancel()
        await host.drain(0.0)
    hurried.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await drain
