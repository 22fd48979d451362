"""Stop signals of a process, heard from its first line on: the one place that handles them.

SIGTERM, SIGHUP (the terminal has closed) and, where a process handles it, SIGINT (Ctrl-C) ask to end. Until a
process serves, it has `LIMIT_S` to end, whatever it waits for. This module is imported first: it imports
nothing that takes time.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

LIMIT_S = 6.0
"""Time to end that a signal leaves a process that does not serve yet; then it is ended by force."""
PARENT_VARIABLE = "FLYSERVE_ENDS_WITH_STDIN"
"""Environment variable: if set, the end of standard input is a SIGTERM. Then the parent process has ended."""
_STOPS = (signal.SIGTERM, signal.SIGHUP)
_SIGNAL_STATUS = 128

Action = Callable[[], None]


class ProcessSignals:
    """The signals that ask this process to end; for the main thread.

    Attributes:
        first: The first of them that has arrived; None if none has.
        is_limited: True until the process serves: a signal then starts its time limit.
    """

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.is_limited = False
        self._action: Action = self._end_at_once
        self._numbers: set[int] = set()
        self._terminals: list[int] = []
        self._last_resorts: list[Action] = []
        self._wakeup = -1
        self._limit_s = LIMIT_S

    @property
    def name(self) -> str:
        """Return the name of the first signal."""
        return (self.first or signal.SIGINT).name

    @property
    def status(self) -> int:
        """Return the exit status of a process that ends before it serves; SIGHUP counts as SIGTERM."""
        is_interrupt = self.first in (None, signal.SIGINT)
        return _SIGNAL_STATUS + (signal.SIGINT if is_interrupt else signal.SIGTERM)

    def listen(self, *others: signal.Signals, limit_s: float = LIMIT_S) -> None:
        """Handle SIGTERM, SIGHUP and `others` until the process ends; for the first lines of a program.

        A signal ends the process at once, and in the blocks below by what they say. A process that does not
        end by that, as in a call of a library, is ended by force after `limit_s`, or by a second signal.

        NOTE: as process 1 of a container, a process without a handler ignores these signals. While a program
        imports its modules, no exception is safe: native code panics, and optional imports swallow it.
        """
        self._install((*_STOPS, *others))
        self._terminals = [file for file in (0, 1, 2) if os.isatty(file)]
        self.is_limited, self._limit_s = True, limit_s
        wakeups, self._wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._unlisten)
        threading.Thread(target=self._guard, args=(wakeups,), name="flyserve-signals", daemon=True).start()
        if os.environ.pop(PARENT_VARIABLE, ""):
            threading.Thread(target=_end_with_parent, name="flyserve-parent", daemon=True).start()

    @contextmanager
    def silent_interrupts(self) -> Iterator[None]:
        """End the process at Ctrl-C without a word while the block imports modules."""
        before = signal.getsignal(signal.SIGINT)
        if before == signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: os._exit(_SIGNAL_STATUS + signal.SIGINT))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def begin_serving(self) -> None:
        """Lift the time limit of the end: from now on running requests may have longer to finish."""
        self.is_limited = False

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Raise SystemExit in the main thread at a signal that `listen` handles, while the block runs."""
        outer, self._action = self._action, self._raise_exit
        try:
            yield
        finally:
            self._action = outer

    @contextmanager
    def delivered_to(self, action: Action) -> Iterator[None]:
        """Call `action` in the main thread at each stop signal, Ctrl-C included, while the block runs."""
        if not self.is_limited:
            self.first = None
        before = {number: signal.getsignal(number) for number in (*_STOPS, signal.SIGINT)}
        outer, self._action, numbers = self._action, action, set(self._numbers)
        self._install(tuple(before))
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._action, self._numbers = outer, numbers

    def deliver_to(self, action: Action) -> None:
        """Change the action of the running block, and handle the signals again if a library has done so."""
        self._action = action
        self.reinstall()

    def reinstall(self) -> None:
        """Handle the signals again, after a library has set its own handlers."""
        self._install(tuple(map(signal.Signals, self._numbers)))

    def receive(self, number: signal.Signals) -> None:
        """Act as at the arrival of this signal, which a library's own handler has taken."""
        self._handle(number, None)

    @contextmanager
    def with_last_resort(self, action: Action) -> Iterator[None]:
        """Call `action` if the process is ended by force while the block runs; it must end soon by itself."""
        self._last_resorts.append(action)
        try:
            yield
        finally:
            self._last_resorts.remove(action)

    def announce(self) -> None:
        """Print one line that says why the process ends."""
        # NOTE: not by a stream: the handler may have interrupted a write to it.
        with suppress(OSError):
            os.write(2, f"stopping: received {self.name}\n".encode())

    def leave(self) -> None:
        """End the process if a signal has asked for it before it served; its threads are not waited for."""
        if self.is_limited and self.first is not None:
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):
                    stream.flush()
            self._end_by_force()

    def _install(self, numbers: tuple[signal.Signals, ...]) -> None:
        for number in numbers:
            # `nohup` has set SIGHUP to be ignored.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._handle)
                self._numbers.add(number)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = self.first is not None
        self.first = self.first or signal.Signals(number)
        if number == signal.SIGHUP:
            self._leave_closed_terminal()
        if self.is_limited:
            if is_second:
                self._end_by_force()
            with suppress(BlockingIOError):
                os.write(self._wakeup, bytes([number]))
        self._action()

    def _end_at_once(self) -> None:
        self.announce()
        self._end_by_force()

    def _raise_exit(self) -> None:
        self.announce()
        raise SystemExit(self.status)

    def _guard(self, wakeups: int) -> None:
        """End the process by force some time after the first signal; on a thread: no library holds it up.

        NOTE: an event loop receives the bytes of its signals itself; then the handler writes to the pipe.
        """
        received: set[int] = set()
        while not (received and self.is_limited):
            received = self._numbers.intersection(os.read(wakeups, 64))
        time.sleep(self._limit_s)
        self.first = self.first or signal.Signals(received.pop())
        self._end_by_force()

    def _end_by_force(self) -> None:
        for action in reversed(self._last_resorts):
            with suppress(Exception):
                action()
        if (multiprocessing := sys.modules.get("multiprocessing")) is not None:
            for child in multiprocessing.active_children():
                child.kill()
        os._exit(self.status)

    def _leave_closed_terminal(self) -> None:
        """Replace a terminal that has closed, which fails every write, by the null device."""
        if lost := [file for file in self._terminals if not os.isatty(file)]:
            null = os.open(os.devnull, os.O_RDWR)
            for file in lost:
                os.dup2(null, file)
            os.close(null)

    def _unlisten(self) -> None:
        """Leave a forked child with default handlers: its signals are not those of this process."""
        signal.set_wakeup_fd(-1)
        self.is_limited = False
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)


def end_at_sigterm() -> None:
    """Let the kernel end this process at SIGTERM: for a Ray actor, from any thread.

    NOTE: Ray's handler is Python code, which its main thread never runs: it stays in native code.
    """
    import ctypes

    ctypes.CDLL(None).signal(signal.SIGTERM, None)  # SIG_DFL; Python's function is for main threads alone


def _end_with_parent() -> None:
    with suppress(OSError):
        while os.read(0, 64):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


stop_signals = ProcessSignals()
"""The stop signals of this process: signals belong to a process, so there is one such object."""
