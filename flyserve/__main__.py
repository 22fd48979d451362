"""The command `flyserve`: name what is missing where the client alone is installed."""

import faulthandler
import sys
from collections.abc import Callable
from typing import NoReturn

_PACKAGES = ("rich", "typer")
"""The packages of the extra `cli`."""
_BAD_INPUT = 2
"""Exit status: the installation or the command line is wrong."""


def main() -> None:
    """Run the command line."""
    from flyserve.signals import stop_signals

    stop_signals.listen()
    faulthandler.enable(2)
    try:
        with stop_signals.silent_interrupts():
            _use_server()
            command = _command_line()
        _run(command)
    finally:
        stop_signals.leave()


def _use_server() -> None:
    from flyserve.core.errors import ConfigError
    from flyserve.server import use_server

    try:
        use_server()
    except ConfigError as error:
        _end(str(error))


def _command_line() -> Callable[[], None]:
    try:
        from flyserve.cli import main
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        _end(f"{error.name} is not installed: pip install 'flyserve[cli]'")
    return main


def _run(command: Callable[[], None]) -> None:
    from flyserve.server import missing_server

    try:
        command()
    except ModuleNotFoundError as error:
        if (missing := missing_server(error)) is None:
            raise
        _end(missing)


def _end(fault: str) -> NoReturn:
    print(f"error: {fault}", file=sys.stderr)
    sys.exit(_BAD_INPUT)


if __name__ == "__main__":
    main()
