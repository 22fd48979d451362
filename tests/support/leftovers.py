"""Find processes that a command has left behind, by a mark in its environment."""

import os
import uuid
from collections.abc import Mapping

import psutil


class MarkedCommand:
    """A command whose processes and their descendants are recognized by their environment.

    Attributes:
        environment: To run it with.
        mark: Name of the variable by which they are recognized.
    """

    mark = "FLYSERVE_TEST_MARK"

    def __init__(self) -> None:
        self._value = uuid.uuid4().hex
        self.environment: Mapping[str, str] = {**os.environ, self.mark: self._value}

    def leftovers(self) -> list[psutil.Process]:
        """Return its processes that still run."""
        return [process for process in psutil.process_iter() if self._is_marked(process)]

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(self.mark) == self._value
        except psutil.Error:
            return False
