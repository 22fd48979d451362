"""Files that are written as a whole or not at all."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from flyserve.core.errors import ConfigError

__all__ = ["write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a file at once; it keeps the mode of an earlier one, and a new one is its owner's alone.

    A link stays, and its file is written. What is no regular file, such as a pipe, is written into.

    Raises:
        ConfigError: It cannot be written; an earlier one is left as it was.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        whole = Path(os.path.realpath(path))
        whole.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=whole.parent, prefix=f".{whole.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            with suppress(FileNotFoundError):
                os.chmod(name, whole.stat().st_mode)
            os.replace(name, whole)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
