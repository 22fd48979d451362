"""What every command shares: where it prints, how it fails."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from fly.errors import FlyServeError, NotReady

DEFAULT_ADDRESS = "127.0.0.1:50051"
EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


def output() -> Console:
    """Standard output: plain where it is no terminal or NO_COLOR is set."""
    return Console(highlight=False, soft_wrap=True)


def messages() -> Console:
    """Standard error, for progress and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def reported_errors(remedy: str = "") -> Iterator[None]:
    """An expected error is one line on stderr and exit status 2; Ctrl-C is exit status 130.

    Args:
        remedy: What helps when nothing can serve at present.
    """
    try:
        yield
    except FlyServeError as error:
        message = " ".join(str(error).split())
        hint = f"; {remedy}" if remedy and isinstance(error, NotReady) else ""
        messages().print(f"error: {message}{hint}", markup=False, style="red")
        raise typer.Exit(EXIT_ERROR) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
