"""A long benchmark in parts: what a broken-off run has measured is kept until the report is written."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Parts:
    """The parts that are measured, in a folder of their own; each is measured as a whole, or not kept.

    NOTE: a part that was kept was measured before, by whatever code there was: a run takes kept parts over
    only where it is told to.
    """

    def __init__(self, folder: Path, plan: str, resumes: bool) -> None:
        """Of one plan, whose text tells it from others; kept parts count where the run `resumes`."""
        self._folder = folder / hashlib.blake2b(plan.encode(), digest_size=8).hexdigest()
        if not resumes:
            self.clear()

    def measure(self, name: str, measure: Callable[[], Any]) -> Any:
        """A part's plain data: what is kept of it, else what `measure` finds, which is kept."""
        path = self._folder / f"{name}.json"
        if not path.is_file():
            found = json.dumps(measure())
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_text(found, encoding="utf-8")
            unfinished.rename(path)
        return json.loads(path.read_text(encoding="utf-8"))

    def clear(self) -> None:
        """The report is written: nothing needs to be kept."""
        shutil.rmtree(self._folder, ignore_errors=True)
