"""Prompts of a user, from a file, and the judgement of responses to them."""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from flyserve.core.errors import ConfigError

_KEYS = ("prompt", "answer", "family")
_RIGHT, _WRONG = 0, 1
"""Exit statuses of a verifier."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a user.

    Attributes:
        place: Its place, for errors.
        prompt: Its text.
        answer: Text that a right response contains; "" if there is none.
        family: Kind of task; figures are shown for each.
    """

    place: str
    prompt: str
    answer: str = ""
    family: str = ""


def load_prompts(path: Path, most: int | None = None) -> list[Prompt]:
    """Read the first `most` prompts of a file, all without: a JSON object a line.

    Raises:
        ConfigError: The file cannot be read, has no prompt, or a line that is something else.
    """
    try:
        # NOTE: only a line feed ends a line of JSON; a text may have others, such as U+2028.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    numbered = [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ConfigError(f"{path} has no prompt: write one JSON object a line")
    return [_prompt(place, line) for place, line in numbered[:most]]


def check_distinct(prompts: Iterable[Prompt]) -> None:
    """Raise ConfigError if two prompts are the same: a recording has one response to each."""
    found: dict[str, Prompt] = {}
    for prompt in prompts:
        if (earlier := found.setdefault(prompt.prompt, prompt)) is not prompt:
            raise ConfigError(f"{prompt.place}: has the prompt of {earlier.place} again")


def _prompt(place: str, line: str) -> Prompt:
    try:
        given: Any = json.loads(line)
        json.dumps(given, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # UnicodeEncodeError: half of a surrogate pair
        given = None
    is_known = isinstance(given, dict) and given.keys() <= {*_KEYS}
    if not is_known or not given.get("prompt") or not all(isinstance(text, str) for text in given.values()):
        raise ConfigError(
            f'{place}: must be a JSON object such as {{"prompt": "...", "answer": "...", "family": "..."}},'
            " in which all but the prompt may be left out"
        )
    return Prompt(place, **given)


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
    _running: set["subprocess.Popen[str]"] = field(default_factory=set, init=False, compare=False)
    _is_closed: Event = field(default_factory=Event, init=False, compare=False)

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
        if status not in (_RIGHT, _WRONG):
            last = output.strip().rpartition("\n")[2][:200]
            found = f"exits with status {status} on the response to {prompt.place}"
            raise ConfigError(f"--verifier: {found}, must be 0 for right or 1 for wrong: {last}")
        return status == _RIGHT

    def close(self) -> None:
        """End the verifiers that run, and those that a thread still starts."""
        self._is_closed.set()
        for process in tuple(self._running):
            _end(process)

    def _run(self, command: list[str], prompt: Prompt, response: str) -> tuple[int, str]:
        """Run the verifier in a process group of its own, so that none of its processes stays."""
        given = {"prompt": prompt.prompt, "answer": prompt.answer, "family": prompt.family}
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except (OSError, IndexError, ValueError) as error:
            raise ConfigError(f"--verifier: {self.command!r} cannot be run: {error}") from None
        self._running.add(process)
        try:
            if self._is_closed.is_set():
                _end(process)
            output, _ = process.communicate(json.dumps({**given, "response": response}), self.timeout_s)
        except BaseException as error:
            _end(process)
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            limit = f"within {self.timeout_s:g} s (--verifier-timeout-s)"
            raise ConfigError(f"--verifier: did not end {limit} on the response to {prompt.place}") from None
        finally:
            self._running.discard(process)
        return process.returncode, output


def _end(process: "subprocess.Popen[str]") -> None:
    """End a verifier and its children; one that has ended is left alone."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
