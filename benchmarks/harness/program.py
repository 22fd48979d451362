"""Programs of other environments, which answer lines of JSON: both ends. Needs only the standard library."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from flyserve.core.errors import ConfigError, NotReady

_ROOT = Path(__file__).resolve().parent.parent.parent
_STOP_TIMEOUT_S = 30.0
_READY = "ready"


class Program:
    """A running program.

    Attributes:
        word: What the program reported when it was ready.
    """

    def __init__(self, name: str, process: "subprocess.Popen[str]", log: IO[str]) -> None:
        """Wait until the process is ready.

        Raises:
            NotReady: It ended before; the error has the last line of its log.
        """
        self._name, self._process, self._log = name, process, log
        self.word: str = self._reply("ended before it was ready")[_READY]

    def ask(self, **asked: Any) -> Any:
        """Return the program's answer to these arguments.

        Raises:
            NotReady: It has ended, or reports an error.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        return self._reply("has ended")["answer"]

    def _reply(self, fault: str) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            self._process.wait(_STOP_TIMEOUT_S)
            self._log.seek(0)
            last = (self._log.read().strip().splitlines() or ["it printed nothing"])[-1]
            raise NotReady(f"{self._name} {fault}; it printed last: {last}")
        found = json.loads(line)
        if "error" in found:
            raise NotReady(f"{self._name} failed: {found['error']}")
        return found


@contextmanager
def running(python: str, script: Path, *arguments: str) -> Iterator[Program]:
    """Yield a script that an interpreter runs; its process ends with the block.

    Raises:
        NotReady: It ends before it is ready; the error has the last line of its log.
    """
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
    # NOTE: -P: modules beside the script have names of the standard library.
    command, pipe = [python, "-P", str(script), *arguments], subprocess.PIPE
    with (
        TemporaryFile("w+") as log,
        subprocess.Popen(
            command, cwd=_ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=log, text=True
        ) as process,
    ):
        try:
            yield Program(script.name, process, log)
        finally:
            _stop(process)


def _stop(process: "subprocess.Popen[str]") -> None:
    # NOTE: by the end of its input at first: the program stops its own processes then.
    assert process.stdin is not None
    for end in (process.stdin.close, process.terminate, process.kill):
        with suppress(BrokenPipeError, subprocess.TimeoutExpired):
            end()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT_S)
            return


def named_python(variable: str) -> str | None:
    """Return the interpreter that a variable names, if it names one.

    Raises:
        ConfigError: There is no such program.
    """
    python = os.environ.get(variable)
    if python and not os.access(python, os.X_OK):
        raise ConfigError(f"{variable}: {python} is not a program; name an interpreter")
    return python or None


def serve(start: Callable[[], tuple[str, Callable[..., Any]]]) -> None:
    """Answer the lines of stdin in a program.

    `start` returns what the program reports when it is ready, and the function that answers. Only replies go
    to stdout: what libraries print there goes to the log.
    """
    replies, _ = os.fdopen(os.dup(1), "w", buffering=1), os.dup2(2, 1)
    word, answer = start()
    print(json.dumps({_READY: word}), file=replies)
    for line in sys.stdin:
        try:
            reply = {"answer": answer(**json.loads(line))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies)
