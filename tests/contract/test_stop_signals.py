"""Stop signals of processes that do not serve yet: each ends, as process 1 too, whatever it waits for."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.support.processes import ROOT, TARGET_MODEL

HANG_S = 800.0
"""Ends a test that hangs; no test depends on its length."""
AS_PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
AS_ROOT_INSIDE = ("--user", "--map-root-user")
"""Further words with which a user who is not root may do so, on most machines."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Services that never answer: a listening socket, and a model folder whose file nobody writes."""

    server: socket.socket
    folder: Path

    @property
    def address(self) -> str:
        host, port = self.server.getsockname()
        return f"{host}:{port}"

    async def called(self, process: "Process") -> None:
        """Return when a connection has been made, and send nothing."""
        self.server.setblocking(False)
        connection, _ = await asyncio.get_running_loop().sock_accept(self.server)
        process.held.enter_context(connection)

    async def read(self, process: "Process") -> None:
        """Return when a process has opened the configuration of the model, and write nothing."""
        while True:
            try:
                file = os.open(self.folder / "config.json", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                await asyncio.sleep(0.05)  # nobody has opened it to read
            else:
                process.held.callback(os.close, file)
                return


@dataclass(frozen=True, slots=True)
class Process:
    """A process under test; `held` is what it waits for."""

    process: asyncio.subprocess.Process
    held: ExitStack = field(default_factory=ExitStack)

    async def printed(self, text: str) -> None:
        """Return when it has printed this."""
        assert self.process.stdout is not None
        while text not in (line := (await self.process.stdout.readline()).decode()):
            assert line, f"it ended before it printed {text}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to process 1 itself, not to `unshare`."""
        (child,) = psutil.Process(self.process.pid).children()
        child.send_signal(number)


Waits = Callable[[Silence, Process], Awaitable[None]]
CALLED, READ = Silence.called, Silence.read


def printed(text: str) -> Waits:
    return lambda _, process: process.printed(text)


ROUTER = f"router --model {TARGET_MODEL} --grpc-port 0 --target"
FILE = "demo/deployment.yaml"
CASES: dict[str, tuple[Waits, signal.Signals, int]] = {
    f"{ROUTER} 127.0.0.1:1": (printed("nothing answers"), signal.SIGTERM, 143),
    f"{ROUTER} ADDRESS": (CALLED, signal.SIGINT, 130),
    "router --model org/name@main --target 127.0.0.1:1": (CALLED, signal.SIGTERM, 143),
    f"flyserve router {FILE} --registry ADDRESS": (CALLED, signal.SIGHUP, 143),
    "services.target --model FOLDER": (READ, signal.SIGTERM, 143),
    "services.drafter --model FOLDER": (READ, signal.SIGHUP, 143),
    "services.lookup": (printed("ready"), signal.SIGHUP, 0),
    "flyserve serve FOLDER --single-process --port 0 --grpc-port 0": (READ, signal.SIGTERM, 143),
    "flyserve pull hf://org/name@main FOLDER/copy": (CALLED, signal.SIGTERM, 143),
    "flyserve generate hello --address ADDRESS": (CALLED, signal.SIGTERM, 143),
    "flyserve chat --address ADDRESS": (CALLED, signal.SIGHUP, 143),
    "flyserve info --address ADDRESS": (CALLED, signal.SIGINT, 130),
    "flyserve bench --address ADDRESS": (CALLED, signal.SIGTERM, 143),
    "flyserve status --ray-address ADDRESS": (CALLED, signal.SIGTERM, 143),
    f"flyserve apply {FILE} --ray-address ADDRESS": (CALLED, signal.SIGTERM, 143),
}
"""Commands of processes that wait for a silent service or file; their signal, and their status."""


async def _end(line: str, folder: Path, as_process_1: Sequence[str]) -> None:
    """Start the process of a case, wait until it waits, send its signal, and check how it ends."""
    waits, number, status = CASES[line]
    folder.mkdir()
    for file in TARGET_MODEL.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with socket.create_server(("127.0.0.1", 0)) as server:
        silence = Silence(server, folder)
        words = line.replace("ADDRESS", silence.address).replace("FOLDER", str(folder)).split()
        started = await asyncio.create_subprocess_exec(
            *(*as_process_1, sys.executable, "-m", *words),
            cwd=ROOT,
            env={
                **{key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"},
                "PYTHONPATH": str(ROOT),
                "HF_ENDPOINT": f"http://{silence.address}",
                "RAY_AUTH_MODE": "disabled",
            },
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        process = Process(started)
        assert started.stdin is not None
        started.stdin.write(b"hello\n")
        try:
            async with asyncio.timeout(HANG_S):
                with process.held:
                    await waits(silence, process)
                    process.signal(number)
                    output, _ = await started.communicate()
        finally:
            if started.returncode is None:
                started.kill()
    text = output.decode()
    assert started.returncode == status, f"{line}: {text}"
    assert "Traceback" not in text, line
    if status == 143:
        assert f"stopping: received {number.name}" in text, f"{line}: {text}"


@pytest.fixture(scope="module")
def as_process_1() -> Sequence[str]:
    """Return the words before a command that make its process the first of its own space."""
    for words in (AS_PROCESS_1, (*AS_PROCESS_1, *AS_ROOT_INSIDE)):
        done = subprocess.run([*words, "true"], capture_output=True, text=True)
        if not done.returncode:
            return words
    pytest.skip(f"no process can be process 1 here: {done.stderr.strip()}")


async def test_process_1_ends_whatever_it_waits_for(tmp_path: Path, as_process_1: Sequence[str]) -> None:
    async with asyncio.TaskGroup() as group:
        for number, line in enumerate(CASES):
            group.create_task(_end(line, tmp_path / str(number), as_process_1))


@pytest.fixture
def program() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start programs that handle stop signals; those that are left are killed after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, ignored: bool = False) -> subprocess.Popen[str]:
        shell = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh") if ignored else ()
        process = subprocess.Popen(
            (*shell, sys.executable, *command),
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


_PROGRAM = """
import ctypes, os, sys, tempfile, time
from functools import partial
from flyserve.signals import stop_signals as stop

stop.listen(limit_s=float(sys.argv[1]))
folder = tempfile.mkdtemp()
mutex = ctypes.create_string_buffer(64)
locks = ctypes.CDLL(None).pthread_mutex_lock
with stop.raised(), stop.with_last_resort(partial(os.rmdir, folder)):
    line = folder
    while True:
        try:
            print(line, flush=True)
            WAIT
        except SystemExit:
            line = "heard"
"""
"""A program that goes on after its first signal."""
_SWALLOWS = _PROGRAM.replace("WAIT", "time.sleep(600)")
_DOES_NOT_HEAR = _PROGRAM.replace("WAIT", "locks(mutex), locks(mutex)")
"""No signal interrupts the second lock."""


@pytest.mark.parametrize("body", [_SWALLOWS, _DOES_NOT_HEAR], ids=["swallowed", "not heard"])
def test_a_process_that_does_not_end_by_a_signal_is_ended_by_force(
    program: Callable[..., subprocess.Popen[str]], body: str
) -> None:
    process = program("-c", body, "0.1")
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 143
    assert not folder.exists()


def test_a_second_signal_ends_at_once_what_does_not_serve(
    program: Callable[..., subprocess.Popen[str]],
) -> None:
    process = program("-c", _SWALLOWS, "1e6")
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "heard\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 143
    assert not folder.exists()


def test_a_closed_terminal_ends_no_process_that_ignores_it(
    program: Callable[..., subprocess.Popen[str]],
) -> None:
    """As under `nohup`; a signal that is not ignored ends it."""
    process = program("-m", "services.lookup", ignored=True)
    assert process.stdout is not None and process.stdout.readline().startswith("ready")
    process.send_signal(signal.SIGHUP)
    ignored = int(Path(f"/proc/{process.pid}/status").read_text().partition("SigIgn:")[2].split()[0], 16)
    assert ignored & 1 << signal.SIGHUP - 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 0


def test_followers_end_with_a_leader_that_waits_for_them(
    program: Callable[..., subprocess.Popen[str]],
) -> None:
    """A follower is stopped, so that its leader waits in native code, which no exception leaves."""
    command = ("-m", "services.target", "--model", str(TARGET_MODEL), "--shards", "2")
    ended, killed = program(*command), program(*command)
    followers = [_follower(ended), _follower(killed)]
    followers[0].suspend()
    ended.terminate()
    killed.kill()
    assert (ended.wait(HANG_S), killed.wait(HANG_S)) == (143, -signal.SIGKILL)
    assert not psutil.wait_procs(followers, timeout=HANG_S)[1]


def _follower(leader: subprocess.Popen[str]) -> psutil.Process:
    """Return the process of a leader's follower, as soon as it is there."""
    while leader.poll() is None:
        for child in psutil.Process(leader.pid).children():
            if "spawn_main" in " ".join(child.cmdline()):
                return child
        time.sleep(0.1)
    raise AssertionError("the leader ended before it had a follower")


_PARENT = """
import os, pathlib, sys
from orchestration.local.processes import service_process

with service_process(("services.lookup",), os.environ, pathlib.Path(sys.argv[1]), 200, 200) as child:
    print(child.pid, flush=True)
    sys.stdin.read()
"""


def test_a_service_ends_with_the_process_that_has_started_it(
    program: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    parent = program("-c", _PARENT, str(tmp_path))
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    assert not psutil.wait_procs([child], timeout=HANG_S)[1]
