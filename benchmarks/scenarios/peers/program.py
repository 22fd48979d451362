"""Programs of others: a process that runs while a block does, and the reason if it does not start."""

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import IO, TypeVar

from benchmarks.harness.system import ROOT
from flyserve.core.errors import NotReady

_STOP_TIMEOUT_S = 30.0
T = TypeVar("T")
Process = subprocess.Popen[str]


@contextmanager
def running(
    command: Sequence[str], await_ready: Callable[[Process], T], has_pipes: bool = True
) -> Iterator[tuple[Process, T]]:
    """Yield a process and what `await_ready` returned; the process ends with the block.

    Without pipes, what it prints goes to its log.

    Raises:
        NotReady: It is not ready; the error has the last line of its log.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with TemporaryFile("w+") as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} if has_pipes else {"stdout": log}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, text=True, **pipes) as process:
            try:
                yield process, _ready(process, await_ready, log, " ".join(command[:3]))
            finally:
                process.terminate()
                try:
                    process.wait(_STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def _ready(process: Process, await_ready: Callable[[Process], T], log: IO[str], what: str) -> T:
    try:
        return await_ready(process)
    except NotReady as error:
        log.seek(0)
        last = (log.read().strip().splitlines() or ["it printed nothing"])[-1]
        raise NotReady(f"{what} {error}; it printed last: {last}") from None


def ready_word(process: Process) -> str:
    """Return the first word after the process's line `ready`, or "".

    Raises:
        NotReady: It ended before.
    """
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ready"):
            return (line.split()[1:] or [""])[0]
    raise NotReady("ended before it was ready")
