"""Files that change while a process runs: read again when they have, the last good content until then."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from fly.errors import ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Signature = tuple[tuple[int, int, int] | None, ...]


class WatchedFiles(Generic[T]):
    """What some files mean, together.

    NOTE: two files are never replaced at one moment: a certificate without its key is not yet good, and the
    next look finds both.

    Attributes:
        version: Counts the contents that were good.
    """

    def __init__(self, paths: Sequence[Path], load: Callable[[], T]) -> None:
        """Loads at once; `load` raises ConfigError where the files make no sense."""
        self._paths = paths
        self._load = load
        self._signature = self._look()
        self._content = load()
        self.version = 1

    def current(self) -> T:
        """Of the files as they are now; as they were, while they make no sense."""
        if (signature := self._look()) != self._signature:
            self._signature = signature
            try:
                self._content = self._load()
                self.version += 1
            except ConfigError as error:
                logger.error("what was read before holds: %s", error)
            else:
                logger.info("read again: %s", ", ".join(map(str, self._paths)))
        return self._content

    def _look(self) -> _Signature:
        return tuple(_signature(path) for path in self._paths)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def read_file(path: Path, field: str) -> bytes:
    """The content of a file; raises ConfigError that names the field where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{field}: {path}: {error.strerror}") from None
