"""Run a service in this process: print its address when it is ready, drain it on a signal."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from fly.errors import FlyServeError
from services.common.flags import fail
from services.common.host import Host, serve_until_signalled
from services.common.service_config import ProcessSection
from services.common.telemetry.logs import configure_logging

EXIT_FAILED = 1


def run_service(build: Callable[[], Awaitable[Host]], config: ProcessSection, role: str) -> None:
    """Serve until SIGTERM or SIGINT; a bad configuration is one line on stderr and exit status 2.

    A service that fails ends the process with exit status 1, for its supervisor to start another.

    Args:
        build: Makes the host.
        config: Grace period and logs.
        role: Role of the process, for its log.
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
