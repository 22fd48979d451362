"""The parts of a long benchmark: what an interrupted run measured is kept until the report is written."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


class Parts:
    """Measured parts in a folder of their own, one JSON file each; an interrupted part is not kept.

    NOTE: a kept part was measured by the code of that time, so a run reuses kept parts only on request.
    """

    def __init__(self, folder: Path, plan: str, resumes: bool) -> None:
        """Use the folder of one plan, which its text identifies; delete it unless the run `resumes`."""
        self._folder = folder / hashlib.blake2b(plan.encode(), digest_size=8).hexdigest()
        if not resumes:
            self.clear()

    def measure(self, name: str, kind: type[T], measure: Callable[[], T]) -> T:
        """Return a kept part, or the result of `measure`, which is then kept."""
        path, adapter = self._folder / f"{name}.json", TypeAdapter(kind)
        if not path.is_file():
            found = adapter.dump_json(measure())
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_bytes(found)
            unfinished.rename(path)
        return adapter.validate_json(path.read_bytes())

    def clear(self) -> None:
        """Delete all parts, after the report was written."""
        shutil.rmtree(self._folder, ignore_errors=True)
