"""`flyserve serve` on a terminal that closes while Ray or a model starts: no process and no file is left."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.leftovers import MarkedCommand
from tests.support.processes import ROOT, TARGET_MODEL

_HANG_S = 800.0
_PROGRAM = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # its closing sends SIGHUP to this process and to Ray's
from flyserve.__main__ import main
main()
"""


@dataclass
class Terminal:
    """A terminal on which `flyserve serve` runs, with a model whose configuration the replicas wait for."""

    file: int
    process: "subprocess.Popen[bytes]"
    model: Path

    def close(self) -> int:
        """Close the terminal and return the exit status."""
        os.close(self.file)
        return self.process.wait(_HANG_S)

    def wait_for(self, title: str, on_wait: Callable[[], object] = lambda: None) -> psutil.Process:
        """Return the descendant whose title contains this, as soon as it runs."""
        while self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                if title in _title(child):
                    return child
            on_wait()
            time.sleep(0.1)
        raise AssertionError(f"it ended before {title} ran")

    def wait_for_ray(self) -> psutil.Process:
        """Return Ray's raylet, as soon as it runs; the command reads the configuration before."""
        return self.wait_for("/raylet/raylet", self._write_configuration)

    def _write_configuration(self) -> None:
        """Write it for one reader, if there is one."""
        with suppress(OSError):
            pipe = os.open(self.model / "config.json", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, (TARGET_MODEL / "config.json").read_bytes())
            os.close(pipe)

    def wait_for_reader(self) -> int:
        """Return the open configuration, as soon as a replica reads it."""
        while self.process.poll() is None:
            try:
                return os.open(self.model / "config.json", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                time.sleep(0.1)
        raise AssertionError("it ended before the model was read")


def _title(process: psutil.Process) -> str:
    try:
        return (process.cmdline() or [""])[0]
    except psutil.Error:
        return ""


def _has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def _terminal(model: Path) -> Iterator[Terminal]:
    """Run `flyserve serve` on a terminal; at the end no process and no temporary file of it may be left."""
    for file in TARGET_MODEL.iterdir():
        (model / file.name).symlink_to(file)
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json")
    # NOTE: short: the kernel limits socket paths to 107 bytes.
    scratch = Path("/tmp") / f"ft{os.getpid()}"
    scratch.mkdir()
    marked = MarkedCommand()
    terminal, side = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "serve", str(model), "--port", "0", "--grpc-port", "0"],
        cwd=ROOT,
        env={**marked.environment, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    try:
        yield Terminal(terminal, process, model)
        assert marked.leftovers() == []
        assert list(scratch.iterdir()) == []
    finally:
        process.kill()
        scratch.rmdir()


def test_nothing_is_left_when_it_closes_while_ray_starts(tmp_path: Path) -> None:
    with _terminal(tmp_path) as terminal:
        raylet = terminal.wait_for_ray()
        # Ray's processes hear the closing only through this one, which lets running responses finish.
        blocked = Path(f"/proc/{raylet.pid}/status").read_text().partition("SigBlk:")[2].split()[0]
        assert int(blocked, 16) & 1
        assert terminal.close() == 143


def test_nothing_is_left_when_it_closes_while_a_model_loads_and_actors_end_by_sigterm(tmp_path: Path) -> None:
    with _terminal(tmp_path) as terminal:
        terminal.wait_for_ray()
        reader = terminal.wait_for_reader()
        for title in ("TargetActor", "Controller"):
            actor = terminal.wait_for(title)
            actor.terminate()
            while not _has_ended(actor):
                time.sleep(0.1)
        assert terminal.close() == 143
        os.close(reader)
