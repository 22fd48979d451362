"""The command line on a pseudo-terminal: real processes as a person uses them."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.flyserve.fake_generation import fake_generation, rejected_address

ROOT = Path(__file__).parents[3]
PROGRAM = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C typed at this terminal interrupts this process,
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background.
from flyserve.cli import main
main()
"""
TIMEOUT_S = 240.0


class Terminal:
    """A process whose standard streams are one terminal."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self.seen = ""
        self._screen = screen

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def read_until(self, pattern: str) -> str:
        """Return the output up to and including a match, from the end of the last one."""
        end = time.monotonic() + TIMEOUT_S
        while (match := re.search(pattern, self.seen)) is None:
            assert self._read(end), f"{pattern!r} did not come: {self.seen!r}"
        read, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return read

    def read_all(self) -> str:
        """The rest, once the process has ended."""
        end = time.monotonic() + TIMEOUT_S
        while self._read(end):
            pass
        self.process.wait(TIMEOUT_S)
        return self.seen

    def _read(self, end: float) -> bool:
        ready, _, _ = select.select([self._screen], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return False
        try:
            read = os.read(self._screen, 4096)
        except OSError:
            return False
        self.seen += read.decode()
        return bool(read)


@contextmanager
def terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    screen, side = pty.openpty()
    unset = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        cwd=ROOT,
        env={**unset, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(side)
    try:
        yield Terminal(process, screen)
    finally:
        process.kill()
        process.wait()
        os.close(screen)


def test_tokens_are_coloured_by_verdict_and_explained() -> None:
    with fake_generation() as (_, address), terminal("generate", "hello", "--address", address) as person:
        seen = person.read_all()
    assert "\x1b[32mthe\x1b[0m\x1b[1;33m quick\x1b[0m" in seen and "\x1b[31m fox\x1b[0m" in seen
    assert "accepted by FLy" in seen and "3 tokens | 6.0 tokens/s" in seen
    assert person.process.returncode == 0


def test_a_conversation_goes_on_after_ctrl_c_and_after_an_error() -> None:
    with fake_generation() as (service, address), terminal("chat", "--address", address) as person:
        assert "big: /new starts" in person.read_until("no draft") and not service.conversations
        person.read_until("> ")
        person.type("hi\n")
        person.read_until("3 tokens")
        service.goes_on_for_ever = True
        service.has_ended.clear()
        person.read_until("> ")
        person.type("more\n")
        person.read_until("quick")
        person.type("\x03")
        person.read_until("stopped")
        assert service.has_ended.wait(TIMEOUT_S)
        person.type("bad\n")
        person.read_until("error: request messages need a chat template")
        service.goes_on_for_ever = False
        for command in ("/help", "/halp"):
            person.read_until("> ")
            person.type(f"{command}\n")
            person.read_until("/halp is no command: /new" if command == "/halp" else r"\n.*/new starts")
        person.read_until("> ")
        person.type("so?\n")
        person.read_until("3 tokens")
        person.read_until("> ")
        person.type("/quit\n")
        person.read_all()
    assert person.process.returncode == 0
    said = [content for _, content in service.conversations[-1]]
    assert said == ["hi", "the quick fox", "more", "the quick", "so?"]


def test_ctrl_c_ends_a_response_with_its_own_status() -> None:
    with (
        fake_generation() as (service, address),
        terminal("generate", "endless", "--address", address) as person,
    ):
        person.read_until("quick")
        person.type("\x03")
        assert "Traceback" not in person.read_all()
        assert service.has_ended.wait(TIMEOUT_S)
    assert person.process.returncode == 130


INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
from flyserve.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["flyserve.cli", "rich.console", "flyserve.client"])
def test_ctrl_c_while_modules_are_imported_is_silent(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, module]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 130)


@pytest.mark.skipif(sys.platform != "linux", reason="writes to /dev/full")
@pytest.mark.parametrize("command", [["info"], ["generate", "hello"]])
def test_an_output_that_takes_no_more_is_named(command: list[str]) -> None:
    with fake_generation() as (_, address), open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "flyserve", *command, "--address", address],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
            text=True,
            check=False,
        )
    assert done.stderr.endswith("error: standard output: No space left on device\n")
    assert "Traceback" not in done.stderr and done.returncode == 2


@pytest.mark.skipif(sys.platform != "linux", reason="writes to /dev/full")
@pytest.mark.parametrize("outputs, status", [(">/dev/full", 2), (">&-", 2), ("2>/dev/full", 0)])
def test_a_key_is_made_where_its_token_is_shown(outputs: str, status: int, tmp_path: Path) -> None:
    command = f"{sys.executable} -m flyserve token bob --file {tmp_path}/keys.yaml {outputs}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == status and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ([] if status else ["keys.yaml"])
    assert done.stdout.startswith("flyserve-") != bool(status)


def test_a_text_is_written_as_well_as_an_output_can() -> None:
    program = "import flyserve.cli as cli; cli.app = lambda: print('\u20ac \xe9'); cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stdout == b"\\u20ac \xe9\n"


def test_a_watch_into_a_pipe_prints_one_look_after_the_other() -> None:
    command = [sys.executable, "-c", "from flyserve.cli import main; main()"]
    with fake_generation() as (_, address):
        watch = [*command, "info", "--watch", "--every-s", "0.1", "--address", address]
        process = subprocess.Popen(watch, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(12)]
        finally:
            process.kill()
            process.communicate()
    assert [line.startswith("target: big") for line in lines].count(True) == 2
    assert "\x1b" not in "".join(lines)


def test_a_watched_deployment_that_goes_away_is_shown_as_such() -> None:
    flags = ("info", "--watch", "--every-s", "0.1", "--retries", "0")
    with fake_generation() as (_, address), terminal(*flags, "--address", address) as person:
        person.read_until("target: .*big")
        person.read_until("target: .*big")
    with terminal(*flags, "--address", rejected_address()) as person:
        person.read_until("unavailable: nothing answers at")
        person.type("\x03")
        person.read_all()
    assert person.process.returncode == 130


def test_no_color_is_respected() -> None:
    with (
        fake_generation() as (_, address),
        terminal("generate", "hello", "--address", address, NO_COLOR="1") as person,
    ):
        seen = person.read_all()
    assert "the quick fox\r\n" in seen and "\x1b[3" not in seen and "accepted by FLy" not in seen
