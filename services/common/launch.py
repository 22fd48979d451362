"""Run a service in this process: print its address when it is ready, drain it on a signal."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence

from fly.errors import FlyServeError
from services.common.flags import fail
from services.common.garbage import exempt_from_collection
from services.common.host import FAILED_GRACE_S, Host
from services.common.service_config import ProcessSection
from services.common.telemetry.logs import configure_logging

EXIT_FAILED = 1


def run_service(build: Callable[[], Awaitable[Host]], config: ProcessSection, role: str) -> None:
    """Serve until SIGTERM or SIGINT; a bad configuration is one line on stderr and exit status 2.

    A service that fails ends the process with exit status 1, for its supervisor to start another.
    """
    import uvloop

    configure_logging(config.telemetry, role)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(build, config.grace_s))
    except FlyServeError as error:
        fail(str(error))


async def _serve(build: Callable[[], Awaitable[Host]], grace_s: float) -> None:
    host = await build()
    await serve_until_signalled(
        host, grace_s, lambda addresses: print(f"ready {' '.join(addresses)}", flush=True)
    )
    if host.failed.is_set():
        sys.exit(EXIT_FAILED)


async def serve_until_signalled(
    host: Host,
    grace_s: float,
    on_ready: Callable[[Sequence[str]], None],
    on_stop: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain; a second signal ends the grace period.

    A host that has failed is drained as well, within `FAILED_GRACE_S`. `on_ready` receives its addresses;
    `on_stop` is called before a host that has not failed is drained.
    """
    loop, stop, hurry = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    await host.start()
    exempt_from_collection()
    on_ready(host.addresses)
    waits = [asyncio.create_task(event.wait()) for event in (stop, host.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if host.failed.is_set():
        grace_s = FAILED_GRACE_S
    else:
        on_stop()
    drain = asyncio.create_task(host.drain(grace_s))
    hurried = asyncio.create_task(hurry.wait())
    await asyncio.wait({drain, hurried}, return_when=asyncio.FIRST_COMPLETED)
    if not drain.done():
        drain.cancel()
        await host.drain(0.0)
    hurried.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await drain
