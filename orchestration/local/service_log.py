"""The log of a service of a local run: why the service ended, and the limit of the log's size."""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

MOST_BYTES = 64 * 2**20
"""Size of a log beyond which its older half is dropped."""
_SEARCHED_BYTES = 2**20
"""Part of a log in which the cause of an end is searched; the stacks of a crash follow its cause."""


def next_log(folder: Path, name: str) -> Path:
    """Return the file for the next log of a service, and delete all earlier ones but the last two."""
    pattern = re.compile(rf"{re.escape(name)}-(\d+)\.log")
    numbers = sorted(int(found[1]) for path in folder.iterdir() if (found := pattern.fullmatch(path.name)))
    for number in numbers[:-2]:
        (folder / f"{name}-{number}.log").unlink(missing_ok=True)
    return folder / f"{name}-{numbers[-1] + 1 if numbers else 1}.log"


def last_line(log: Path) -> str:
    """Return the last line of a log."""
    lines = _last_text(log).strip().splitlines()
    return lines[-1].strip() if lines else "it printed nothing"


def crash_cause(log: Path) -> str:
    """Return the cause that a crash has printed before its stack; empty if it has not."""
    found = re.search(r"^Fatal Python error: .*", _last_text(log), re.MULTILINE)
    return found[0] if found else ""


def limit_size(log: Path) -> None:
    """Drop the older half of a log that exceeds the limit.

    NOTE: its service must append. A line that it writes at this very moment may be lost.
    """
    with suppress(OSError):
        if log.stat().st_size <= MOST_BYTES:
            return
        with log.open("a+b") as file:
            kept = _last_bytes(file, MOST_BYTES // 2)
            file.truncate(0)
            file.write(kept.partition(b"\n")[2])


def _last_text(log: Path) -> str:
    """Return the last part of a log; nothing if it has been deleted."""
    try:
        with log.open("rb") as file:
            return _last_bytes(file, _SEARCHED_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _last_bytes(file: BinaryIO, most: int) -> bytes:
    file.seek(-min(most, file.seek(0, os.SEEK_END)), os.SEEK_END)
    return file.read()
