"""Stop signals of processes that do not serve yet: each ends, as process 1 too, whatever it waits for."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.support.processes import ROOT, TARGET_MODEL

HANG_S = 800.0
"""Ends a test that hangs; no test depends on its length."""
AS_PROCESS_1 = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


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


Command = Callable[[Silence], tuple[str, ...]]
Waits = Callable[[Silence, Process], Awaitable[None]]
SERVE = ("--port", "0", "--grpc-port", "0")


async def _called(silence: Silence, process: Process) -> None:
    await silence.called(process)


async def _read(silence: Silence, process: Process) -> None:
    await silence.read(process)


def _printed(text: str) -> Waits:
    async def printed(silence: Silence, process: Process) -> None:
        await process.printed(text)

    return printed


ROUTER = ("router", "--model", str(TARGET_MODEL), "--grpc-port", "0", "--target")
CASES: dict[str, tuple[Command, Waits, tuple[signal.Signals, ...], int]] = {
    "router, nothing at the target": (
        lambda silence: (*ROUTER, "127.0.0.1:1"),
        _printed("nothing answers"),
        (signal.SIGTERM,),
        143,
    ),
    "router, silent target": (lambda silence: (*ROUTER, silence.address), _called, (signal.SIGINT,), 130),
    "router, silent hub": (
        lambda silence: ("router", "--model", "org/name@main", "--target", "127.0.0.1:1"),
        _called,
        (signal.SIGTERM,),
        143,
    ),
    "flyserve router, silent registry": (
        lambda silence: ("flyserve", "router", "demo/deployment.yaml", "--registry", silence.address),
        _called,
        (signal.SIGHUP,),
        143,
    ),
    "target, model": (
        lambda silence: ("services.target", "--model", str(silence.folder)),
        _read,
        (signal.SIGTERM,),
        143,
    ),
    "drafter, model": (
        lambda silence: ("services.drafter", "--model", str(silence.folder)),
        _read,
        (signal.SIGHUP,),
        143,
    ),
    "sub-drafter that serves": (
        lambda silence: ("services.lookup",),
        _printed("ready"),
        (signal.SIGHUP,),
        0,
    ),
    "flyserve serve, model": (
        lambda silence: ("flyserve", "serve", str(silence.folder), "--single-process", *SERVE),
        _read,
        (signal.SIGTERM,),
        143,
    ),
    "flyserve pull, silent hub": (
        lambda silence: ("flyserve", "pull", "hf://org/name@main", str(silence.folder / "copy")),
        _called,
        (signal.SIGTERM,),
        143,
    ),
    "flyserve generate, silent router": (
        lambda silence: ("flyserve", "generate", "hello", "--address", silence.address),
        _called,
        (signal.SIGTERM,),
        143,
    ),
    "flyserve chat, silent router": (
        lambda silence: ("flyserve", "chat", "--address", silence.address),
        _called,
        (signal.SIGHUP,),
        143,
    ),
    "flyserve info, silent router": (
        lambda silence: ("flyserve", "info", "--address", silence.address),
        _called,
        (signal.SIGINT,),
        130,
    ),
    "flyserve bench, silent router": (
        lambda silence: ("flyserve", "bench", "--address", silence.address),
        _called,
        (signal.SIGTERM,),
        143,
    ),
    "flyserve status, silent Ray": (
        lambda silence: ("flyserve", "status", "--ray-address", silence.address),
        _called,
        (signal.SIGTERM,),
        143,
    ),
    "flyserve apply, silent Ray": (
        lambda silence: ("flyserve", "apply", "demo/deployment.yaml", "--ray-address", silence.address),
        _called,
        (signal.SIGTERM,),
        143,
    ),
}


async def _end(name: str, folder: Path) -> None:
    """Start the process of a case, wait until it waits, send its signals, and check how it ends."""
    command, waits, numbers, status = CASES[name]
    folder.mkdir()
    for file in TARGET_MODEL.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with socket.create_server(("127.0.0.1", 0)) as server:
        silence = Silence(server, folder)
        started = await asyncio.create_subprocess_exec(
            *(*AS_PROCESS_1, sys.executable, "-m", *command(silence)),
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
                    for number in numbers:
                        process.signal(number)
                    output, _ = await started.communicate()
        finally:
            if started.returncode is None:
                started.kill()
    text = output.decode()
    assert started.returncode == status, f"{name}: {text}"
    assert "Traceback" not in text, name
    if status == 143:
        assert f"stopping: received {numbers[-1].name}" in text, f"{name}: {text}"


@pytest.fixture(scope="module")
def _may_unshare() -> None:
    done = subprocess.run([*AS_PROCESS_1, "true"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no process can be process 1 here: {done.stderr.strip()}")


@pytest.mark.usefixtures("_may_unshare")
async def test_process_1_ends_whatever_it_waits_for(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(CASES):
            group.create_task(_end(name, tmp_path / str(number)))


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
from services.common.signals import stop_signals as stop

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
