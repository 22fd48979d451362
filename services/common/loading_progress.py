"""Progress of the load of a model, from the process that loads it to the one that shows it, by a file."""

import os
from contextlib import suppress
from pathlib import Path

VARIABLE = "FLYSERVE_PROGRESS"
"""Environment variable with the folder of these files; without it, nothing is written."""


class LoadingProgress:
    """The progress of the replica that this process starts at present."""

    def __init__(self) -> None:
        self._replica = ""
        self._shown = ""

    def begin(self, replica: str) -> None:
        """Name the replica whose model is loaded next."""
        self._replica = replica

    def report(self, done: int, total: int) -> None:
        """Publish the bytes that are read, of all; for any thread."""
        folder, text = os.environ.get(VARIABLE), f"loading weights {done / max(total, 1):.0%}"
        if folder and self._replica and text != self._shown:
            self._shown = text
            with suppress(OSError):  # it is shown later, or not at all
                _file(folder, self._replica).write_text(text, encoding="utf-8")


def read_progress(folder: Path, replica: str) -> str:
    """Return the progress of a replica; empty if there is none."""
    with suppress(OSError):
        return _file(folder, replica).read_text(encoding="utf-8")
    return ""


def _file(folder: Path | str, replica: str) -> Path:
    return Path(folder, f"{replica}.progress")


loading_progress = LoadingProgress()
"""The progress of this process, which starts one replica after the other."""
