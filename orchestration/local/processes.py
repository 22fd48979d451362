"""Processes and signals of a local run: start a service as a child process, and always end it in order."""

import contextlib
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from flyserve.core.errors import ConfigError, NotReady
from flyserve.signals import PARENT_VARIABLE, stop_signals
from orchestration.local.service_log import crash_cause, last_line, next_log

_READY = "ready "


class StopSignals:
    """Raise KeyboardInterrupt in the main thread on a stop signal, Ctrl-C included, until the stop begins.

    So a second signal does not interrupt the stop that the first one started; it may hasten it.
    """

    def __init__(self) -> None:
        self._received = False
        self._block = stop_signals.delivered_to(self._interrupt)

    def __enter__(self) -> "StopSignals":
        self._block.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._block.__exit__(None, None, None)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal was received.

        NOTE: an exception that a handler raises within a library's callback may be lost there: waiting code
        also calls this.
        """
        if self._received:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore the signals from now on; before anything serves, a second one still ends the process."""
        stop_signals.deliver_to(lambda: None)

    def hasten(self, process: "ServiceProcess") -> None:
        """From now on let the signals end the grace period of `process`, which is being stopped."""
        stop_signals.deliver_to(process.terminate)

    def _interrupt(self) -> None:
        if not self._received:
            stop_signals.announce()
        self._received = True
        raise KeyboardInterrupt


class ServiceProcess:
    """A running `python -m <service>` that is ready.

    Attributes:
        address: host:port of its gRPC server.
        urls: URLs of its other servers.
        addresses: All of them.
        log: File with its standard error output.
    """

    def __init__(
        self, name: str, process: "subprocess.Popen[str]", addresses: Sequence[str], log: Path
    ) -> None:
        self.name, self.pid, self.addresses = name, process.pid, tuple(addresses)
        self.address, *self.urls = addresses
        self._process, self.log = process, log

    def has_ended(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the process to end by itself; return True if it did."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def terminate(self) -> None:
        """Send SIGTERM: the first lets running requests finish, the second cancels them."""
        self._process.terminate()

    def exit_reason(self) -> str:
        """Return the exit status of an ended process, and why it ended: its last line, or the signal."""
        status = self._process.returncode
        if status >= 0:
            return f"ended with status {status}: {last_line(self.log)}"
        names = {each.value: each.name for each in signal.Signals}
        cause = f": {found}" if (found := crash_cause(self.log)) else ""
        return f"ended with status {status} ({names.get(-status, 'a signal')}){cause}"


@contextlib.contextmanager
def service_process(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, timeout_s: float, grace_s: float
) -> Iterator[ServiceProcess]:
    """Run `python -m <command>` until the block ends; enter the block when it is ready.

    It has `timeout_s` to print `ready host:port` and the URLs of its other servers, and at the end `grace_s`
    between SIGTERM and SIGKILL. Its log is in `folder`: `<module>-1.log` for the first process; those of
    the last three are kept. If this process is killed, it receives SIGTERM.

    Raises:
        ConfigError: It ended; the message is its last line.
        NotReady: It was not ready in time.
    """
    name = command[0]
    errors = next_log(folder, name)
    # NOTE: it appends, so that `limit_size` can shorten the file meanwhile.
    with errors.open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**environment, PARENT_VARIABLE: "1"},
            # Nothing is written: the pipe closes when this process ends.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            # A terminal's Ctrl-C reaches only this process, which then stops the child.
            start_new_session=True,
        )
    with stop_signals.with_last_resort(process.kill):
        try:
            yield ServiceProcess(name, process, _ready_addresses(name, process, errors, timeout_s), errors)
        finally:
            _end(process, grace_s)


def _ready_addresses(
    name: str, process: "subprocess.Popen[str]", errors: Path, timeout_s: float
) -> list[str]:
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(process.stdout, lines), daemon=True).start()
    try:
        while (line := lines.get(timeout=timeout_s)) is not None:
            if line.startswith(_READY):
                return line.removeprefix(_READY).split()
    except queue.Empty:
        raise NotReady(f"the {name} was not ready after {timeout_s:.0f} s") from None
    process.wait()
    raise ConfigError(f"{name}: {last_line(errors).removeprefix('error: ')}")


def _read_lines(stream: IO[str], lines: "queue.SimpleQueue[str | None]") -> None:
    """Forward every line, so that the process never blocks on a full pipe; None at the end."""
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(None)


def _end(process: "subprocess.Popen[str]", grace_s: float) -> None:
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
