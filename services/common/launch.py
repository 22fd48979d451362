"""What every `python -m services.<tier>` does: one line per error, an address when ready, then drain."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import NoReturn

import typer

from fly.errors import FlyServeError
from services.common.host import Host, serve_until_signalled
from services.common.telemetry.config import TelemetryConfig
from services.common.telemetry.logs import configure_logging

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


def run_service(
    build: Callable[[], Awaitable[Host]], grace_s: float, role: str, telemetry: TelemetryConfig
) -> None:
    """Serves until SIGTERM or SIGINT; a bad configuration is one line on stderr and exit status 2.

    A service that fails ends the process with exit status 1: whoever supervises it starts another.

    Args:
        build: Makes the host.
        grace_s: For running calls at the end.
        role: Of the process, for its log.
        telemetry: How it logs.
    """
    import uvloop

    configure_logging(telemetry, role)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(build, grace_s))
    except FlyServeError as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    """Ends the process with one line."""
    typer.echo(f"error: {message}", err=True)
    sys.exit(EXIT_BAD_INPUT)


async def _serve(build: Callable[[], Awaitable[Host]], grace_s: float) -> None:
    host = await build()
    await serve_until_signalled(host, grace_s, lambda addresses: typer.echo(f"ready {' '.join(addresses)}"))
    if host.failed.is_set():
        sys.exit(EXIT_FAILED)
