"""Text that a command reads: the file that an option names, or standard input."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from flyserve.core.errors import ConfigError

_STDIN = "standard input"


def read_text(path: Path, option: str) -> str:
    """Return the text of the file that an option names; raise ConfigError if it cannot be read as UTF-8."""
    place = f"{option}: {path}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(place, error) from None
    return _text(content, place)


def read_stdin() -> str:
    """Return the whole of standard input; raise ConfigError if it cannot be read as UTF-8."""
    try:
        content = _stdin().read()
    except OSError as error:
        raise _unreadable(_STDIN, error) from None
    return _text(content, _STDIN)


def stdin_lines() -> Iterator[str]:
    """Yield the lines of standard input as they arrive; raise ConfigError at one that is not UTF-8."""
    lines = enumerate(_stdin(), 1)
    while True:
        try:
            number, line = next(lines)
        except StopIteration:
            return
        except OSError as error:
            raise _unreadable(_STDIN, error) from None
        yield _text(line, f"{_STDIN}: line {number}")


def is_stdin_a_terminal() -> bool:
    """Return True if a person types what is read from standard input."""
    return sys.stdin is not None and sys.stdin.isatty()


def _stdin() -> BinaryIO:
    if sys.stdin is None:  # the process was started without one
        raise ConfigError(f"{_STDIN}: is closed")
    return sys.stdin.buffer


def _unreadable(place: str, error: OSError) -> ConfigError:
    return ConfigError(f"{place}: cannot be read: {error.strerror or error}")


def _text(content: bytes, place: str) -> str:
    """Decode as a text file is: every kind of line end becomes a line feed."""
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: is not UTF-8, at byte {error.start}") from None
