"""Files that are written as a whole or not at all."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from flyserve.core.errors import ConfigError

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a file at once; it keeps the mode of an earlier one, and a new one is its owner's alone.

    Raises:
        ConfigError: It cannot be written; an earlier one is left as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            with suppress(FileNotFoundError):
                os.chmod(name, path.stat().st_mode)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
