"""The terminal of every command: its outputs, its errors, its exit status."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment, Segments
from rich.text import Text

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
_CONTROLS = {
    code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}
"""Control characters (C0, DEL, C1) as people write them, such as `\\x1b`; newline and tab are no danger."""


def visible(text: str) -> str:
    """Return a text that a terminal only shows: its control characters are written out."""
    return text.translate(_CONTROLS)


class SafeConsole(Console):
    """A console on which texts of models, servers and files are only shown.

    No part of a text is markup or the code of an emoji, and none of its escape sequences reaches a terminal:
    those that do are rich's own.
    """

    def __init__(
        self, file: IO[str] | None = None, stderr: bool = False, force_terminal: bool | None = None
    ) -> None:
        super().__init__(
            file=file,
            stderr=stderr,
            force_terminal=force_terminal,
            highlight=False,
            soft_wrap=True,
            markup=False,
            emoji=False,
        )

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as rich does; an error of the system, such as that of a full disk, names the output."""
        with self._named_errors():
            super().print(*objects, **options)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = error.filename or ("standard error" if self.stderr else "standard output")
            raise

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, with control characters written out; all that is printed passes here."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a text as rich does, but with control characters written out: rich drops some of them."""
        return super().render_str(visible(text), **options)

    def write_text(self, text: str | Text) -> None:
        """Write the text of a model: exactly as it is, but visible and in its colours on a terminal.

        Colours are those of a `Text`. Its control characters must be visible already: it drops some of them.
        """
        if self.is_terminal:
            # NOTE: rich replaces the tabs of whatever it prints as text.
            self.print(Segments(text.render(self) if isinstance(text, Text) else [Segment(text)]))
            return
        with self._named_errors():
            try:
                self.file.write(str(text))
                self.file.flush()
            except BrokenPipeError:
                self.on_broken_pipe()


def output() -> SafeConsole:
    """Return standard output: plain if it is no terminal or NO_COLOR is set."""
    return SafeConsole()


def messages() -> SafeConsole:
    """Return standard error, for progress and errors."""
    return SafeConsole(stderr=True)


@contextmanager
def reported_errors() -> Iterator[None]:
    """Report an expected error as one line on stderr and an exit status for its kind; 130 for Ctrl-C.

    An error of the system that names a file is the file's: Python's own checks of paths raise it, too.
    """
    try:
        with stop_signals.raised():
            yield
    except FlyServeError as error:
        print_error(error)
        raise typer.Exit(exit_status(error)) from None
    except OSError as error:
        if error.filename is None:
            raise
        print_error(ConfigError(f"{error.filename}: {error.strerror}"))
        raise typer.Exit(EXIT_BAD_INPUT) from None
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


def print_message(line: str) -> None:
    """Print a line on standard error if it can be written: what serves outlives its terminal.

    NOTE: rich would end the process at a closed pipe.
    """
    file = messages().file
    with suppress(OSError, ValueError):
        file.write(f"{visible(line)}\n")
        file.flush()


def print_error(error: FlyServeError) -> None:
    """Print one line on stderr: the error and its remedy."""
    message, hint = " ".join(str(error).split()), _hint(error)
    messages().print(f"error: {message}{f'; {hint}' if hint else ''}", markup=False, style="red")


def exit_status(error: FlyServeError) -> int:
    """Return the exit status for the kind of an error."""
    return next(status for kinds, status in _STATUS if isinstance(error, kinds))


def _hint(error: FlyServeError) -> str:
    match error:
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
