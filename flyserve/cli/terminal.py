"""The terminal of every command: its outputs, its errors, its exit status."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from flyserve.core.errors import (
    ConfigError,
    DeadlineExceeded,
    FlyServeError,
    InvalidRequest,
    ModelError,
    NoGrpcPort,
    NotReady,
    Overloaded,
    Unauthenticated,
)
from flyserve.signals import stop_signals

EXIT_FAILED = 1
"""Something went wrong that neither other input nor patience mends."""
EXIT_BAD_INPUT = 2
"""The command, a file or the request is wrong; also click's own for a wrong command line."""
EXIT_TRY_LATER = 3
"""Nothing serves at present, all is full, or the deadline was too short: the same command may succeed."""

_STATUS = (
    ((InvalidRequest, ConfigError, ModelError, Unauthenticated), EXIT_BAD_INPUT),
    ((NotReady, Overloaded, DeadlineExceeded), EXIT_TRY_LATER),
    ((FlyServeError,), EXIT_FAILED),
)


def output() -> Console:
    """Return standard output: plain if it is no terminal or NO_COLOR is set."""
    return Console(highlight=False, soft_wrap=True)


def messages() -> Console:
    """Return standard error, for progress and errors."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def reported_errors(remedy: str = "") -> Iterator[None]:
    """Report an expected error as one line on stderr and an exit status for its kind; 130 for Ctrl-C.

    `remedy` is the advice if nothing can serve at present.
    """
    try:
        with stop_signals.raised():
            yield
    except FlyServeError as error:
        print_error(error, remedy)
        raise typer.Exit(exit_status(error)) from None
    except KeyboardInterrupt:
        raise typer.Exit(stop_signals.status) from None


@contextmanager
def ended_at_once() -> Iterator[None]:
    """End the process at a stop signal, Ctrl-C included, while the block runs; threads are not waited for."""

    def end() -> None:
        stop_signals.announce()
        stop_signals.leave()
        raise KeyboardInterrupt

    with stop_signals.delivered_to(end):
        yield


def print_error(error: FlyServeError, remedy: str = "") -> None:
    """Print one line on stderr: the error and its remedy."""
    message, hint = " ".join(str(error).split()), _hint(error, remedy)
    messages().print(f"error: {message}{f'; {hint}' if hint else ''}", markup=False, style="red")


def exit_status(error: FlyServeError) -> int:
    """Return the exit status for the kind of an error."""
    return next(status for kinds, status in _STATUS if isinstance(error, kinds))


def _hint(error: FlyServeError, remedy: str) -> str:
    match error:
        case NotReady():
            return "" if remedy in str(error) else remedy
        case NoGrpcPort():
            return _grpc_ports()
        case Overloaded() if error.retry_after_s:
            return f"try again in {error.retry_after_s:g} s"
        case Unauthenticated():
            return "give a token by the environment variable FLYSERVE_TOKEN"
        case DeadlineExceeded():
            return "allow more time with --timeout-s"
    return ""


def _grpc_ports() -> str:
    """Return the gRPC ports of the deployments that run on this machine; empty if there are none."""
    try:
        from orchestration.local.local_ray import running_deployments
    except ModuleNotFoundError:
        return ""  # the client alone is installed

    found = [f"{info.address} ({info.name})" for info in running_deployments() if info.address]
    return f"gRPC is served on this machine at {', '.join(found)}" if found else ""
