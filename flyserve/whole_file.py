"""Files that are written as a whole or not at all."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from flyserve.core.errors import ConfigError

__all__ = ["check_distinct_files", "check_writable", "write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a file at once; it keeps the mode of an earlier one, and a new one is its owner's alone.

    A link stays, and its file is written. What is no regular file, such as a pipe, is written into.

    Raises:
        ConfigError: It cannot be written; an earlier one is left as it was.
    """
    with _named_errors(path):
        if _is_special(path):
            path.write_text(text, encoding="utf-8")
            return
        whole, handle, name = _begin(path)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            with suppress(FileNotFoundError):
                os.chmod(name, whole.stat().st_mode)
            os.replace(name, whole)
        except BaseException:
            os.unlink(name)
            raise


def check_writable(path: Path) -> None:
    """Raise the ConfigError of `write_whole` now, before there is a text; the file stays as it is."""
    with _named_errors(path):
        if not _is_special(path):
            _, handle, name = _begin(path)
            os.close(handle)
            os.unlink(name)


def check_distinct_files(files: Mapping[str, Path | None]) -> None:
    """Raise ConfigError if two options name one file, which one of them would then destroy."""
    found = dict[str, str]()
    for option, path in files.items():
        if path is None or _is_special(path):
            continue
        earlier = found.setdefault(os.path.realpath(path), option)
        if earlier != option:
            raise ConfigError(f"{option}: {path} is the file of {earlier}, too: name another file")


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _begin(path: Path) -> tuple[Path, int, str]:
    """Return the file that a path names, and an open new one beside it, with its name."""
    whole = Path(os.path.realpath(path))
    whole.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        whole.stat()  # a link to itself names no file
    return whole, *tempfile.mkstemp(dir=whole.parent, prefix=f".{whole.name}.")


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
