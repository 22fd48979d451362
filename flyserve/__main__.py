"""The command `flyserve`: name the missing extra where the client alone is installed."""

import faulthandler
import sys
from collections.abc import Callable

_PACKAGES = ("rich", "typer")
"""The packages of the extra `cli`."""


def main() -> None:
    """Run the command line."""
    from flyserve.signals import stop_signals

    stop_signals.listen()
    faulthandler.enable(2)
    try:
        with stop_signals.silent_interrupts():
            command = _command_line()
        command()
    finally:
        stop_signals.leave()


def _command_line() -> Callable[[], None]:
    try:
        from flyserve.cli import main
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        sys.exit(f"error: {error.name} is not installed: pip install 'flyserve[cli]'")
    return main


if __name__ == "__main__":
    main()
