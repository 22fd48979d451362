"""Watched files: reload them when they change, and keep the last valid content."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from flyserve.core.errors import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Signature = tuple[tuple[int, ...] | None, ...]


class WatchedFiles(Generic[T]):
    """The parsed content of some files, together.

    NOTE: two files are never replaced at the same moment: a new certificate without its new key is invalid,
    and the next check finds both.

    Attributes:
        version: Number of valid contents so far.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], T]) -> None:
        """Load the files; `load` raises ConfigError if they are invalid."""
        self._paths = paths
        self._load = load
        self._signature = self._signatures()
        self._content = load()
        self.version = 1

    def current(self) -> T:
        """Return the content of the files as they are now; the last valid content if they are invalid."""
        if (signature := self._signatures()) != self._signature:
            self._signature = signature
            try:
                self._content = self._load()
                self.version += 1
            except ConfigError as error:
                logger.error("the last valid content stays in use: %s", error)
            else:
                logger.info("reloaded: %s", ", ".join(map(str, self._paths)))
        return self._content

    def _signatures(self) -> _Signature:
        return tuple(_signature(path) for path in self._paths)


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    # NOTE: a file that could not be read may become readable with the same content: that changes only ctime.
    return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size


def read_file(path: Path, field: str) -> bytes:
    """Return the content of a file; raise ConfigError with the field's name if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{field}: {path}: {error.strerror}") from None
