"""Judgement of responses: by a command of the user, or by the answer that they have to contain."""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Lock, Thread, Timer
from typing import IO

from flyserve.calibration.prompts import Prompt
from flyserve.core.errors import ConfigError

_RIGHT, _WRONG = 0, 1
"""Exit statuses of a verifier."""
_MOST_OUTPUT = 4096
"""Bytes that are kept of a verifier's output, the last ones."""
_END_S = 1.0
"""Longest wait for the end of the output: a process that has left the verifier's group may keep it open."""
_TRACEBACK = "Traceback (most recent call last):"
_Process = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class Judge:
    """Decides whether a response is right: by a command, or by the answer that it has to contain.

    Attributes:
        command: Command of a verifier. It gets a JSON object with `prompt`, `answer`, `family` and `response`
            on its standard input, and exits with status 0 if the response is right, with 1 if it is wrong.
        timeout_s: Time limit of one call.
    """

    command: str | None = None
    timeout_s: float = 60.0
    _running: set[_Process] = field(default_factory=set, init=False, compare=False)
    _lock: Lock = field(default_factory=Lock, init=False, compare=False)
    _is_closed: Event = field(default_factory=Event, init=False, compare=False)
    _tracebacks: list[str] = field(default_factory=list, init=False, compare=False)

    def __post_init__(self) -> None:
        """Raise ConfigError for a command that cannot be run, before there is a response to judge."""
        if self.command is None:
            return
        try:
            program = (shlex.split(self.command) or [""])[0]
        except ValueError as error:
            raise ConfigError(f"--verifier: {self.command!r} cannot be run: {error}") from None
        if shutil.which(program) is None:
            raise ConfigError(f"--verifier: {self.command!r} cannot be run: {program!r} is no command")

    def can_judge(self, prompt: Prompt) -> bool:
        return self.command is not None or bool(prompt.answer)

    def is_right(self, prompt: Prompt, response: str) -> bool:
        """Return the judgement; raise ConfigError if the verifier fails, or does not end in time."""
        if self.command is None:
            return prompt.answer in response
        status, output = self._run(shlex.split(self.command), prompt, response)
        last = output.strip().rpartition("\n")[2][:200]
        if status == _WRONG and _TRACEBACK in output:
            self._tracebacks.append(f"{prompt.place}: {last}")
        if status not in (_RIGHT, _WRONG):
            end = f"exits with status {status}" if status > 0 else f"is ended by {_name_of(-status)}"
            found = f"{end} on the response to {prompt.place}, must exit with 0 for right or 1 for wrong"
            raise ConfigError(f"--verifier: {found}{f': {last}' if last else ''}")
        return status == _RIGHT

    def doubts(self) -> Iterator[str]:
        """Yield a line if a verifier may have crashed: in Python its status is then 1, too."""
        if self._tracebacks:
            found = f"{len(self._tracebacks)} responses were judged wrong with a traceback of Python"
            advice = "if the verifier itself crashed there, let it exit with status 2"
            yield f"{found}, such as on {self._tracebacks[0]}: {advice}"

    def close(self) -> None:
        """End the verifiers that run, and those that a thread still starts."""
        with self._lock:
            self._is_closed.set()
            for process in self._running:
                _end(process)

    def _run(self, command: list[str], prompt: Prompt, response: str) -> tuple[int, str]:
        """Return status and last output of the verifier."""
        given = {"prompt": prompt.prompt, "answer": prompt.answer, "family": prompt.family}
        is_late = Event()

        def end_late() -> None:
            is_late.set()
            _end(process)

        with self._started(command) as process:
            output = _Tail(process.stdout)
            timer = Timer(self.timeout_s, end_late)
            timer.start()
            try:
                _write(process.stdin, json.dumps({**given, "response": response}).encode())
                _until_ended(process)
            finally:
                timer.cancel()
                timer.join()
        if is_late.is_set():
            limit = f"within {self.timeout_s:g} s (--verifier-timeout-s)"
            raise ConfigError(f"--verifier: did not end {limit} on the response to {prompt.place}")
        return process.returncode, output.text()

    @contextmanager
    def _started(self, command: list[str]) -> Iterator[_Process]:
        """Run a verifier in a process group of its own, so that none of its processes is left after it."""
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True
            )
        except (OSError, IndexError, ValueError) as error:
            raise ConfigError(f"--verifier: {self.command!r} cannot be run: {error}") from None
        with self._lock:
            self._running.add(process)
            if self._is_closed.is_set():
                _end(process)
        try:
            yield process
        finally:
            with self._lock:
                _end(process)
                process.wait()
                self._running.discard(process)


class _Tail:
    """The end of an output, read to its end in a thread: so no verifier waits, and none fills the memory."""

    def __init__(self, output: IO[bytes] | None) -> None:
        assert output is not None
        self._output, self._last = output, b""
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._output:
            while part := os.read(self._output.fileno(), _MOST_OUTPUT):
                self._last = (self._last + part)[-_MOST_OUTPUT:]

    def text(self) -> str:
        self._thread.join(_END_S)
        return self._last.decode(errors="replace")


def _name_of(number: int) -> str:
    """Return the name of a signal, such as SIGKILL."""
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _write(stdin: IO[bytes] | None, text: bytes) -> None:
    """Write the whole input of a verifier, which may end without reading it."""
    assert stdin is not None
    with suppress(BrokenPipeError), stdin:
        stdin.write(text)


def _until_ended(process: _Process) -> None:
    """Return when a verifier has ended.

    NOTE: where the system can, its id is kept: only with it may the rest of its group be ended. An id that
    is free may be that of another group.
    """
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    else:
        process.wait()


def _end(process: _Process) -> None:
    """End a verifier, also one that has ended, and its children; nothing if its id is free."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: a group of ended processes alone
            os.killpg(process.pid, signal.SIGKILL)
