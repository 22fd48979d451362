"""A reusable timeout for many short steps, for which `asyncio.timeout` would be too slow."""

import asyncio
import math
from types import TracebackType
from typing import Self


class StepTimeout:
    """Interrupts a task whose step takes too long; entered for each step, by one task at a time.

    A step only assigns its deadline: the single timer is not rescheduled, but checks at its expiry whether
    the deadline has passed. So it may expire once without any step; `close` cancels it.
    """

    def __init__(self, timeout_s: float) -> None:
        """Allow `timeout_s` for each step."""
        self._timeout_s = timeout_s
        self._due_s = 0.0
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._has_expired = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        """Start a step; leaving the block raises TimeoutError if it took too long."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._task = task = asyncio.current_task(self._loop)
        assert task is not None, "a step timeout must be entered in a task"
        self._cancelling, self._has_expired = task.cancelling(), False
        self._due_s = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._due_s, self._expire)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if not self._has_expired:
            return
        assert task is not None
        # NOTE: as in `asyncio.timeout`: a cancellation of the task from elsewhere stays in force.
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def pause(self) -> None:
        """Stop the clock of the current step until `restart`."""
        self._due_s = math.inf

    def restart(self) -> None:
        """Give the current step the whole time from now on."""
        assert self._loop is not None, "a step timeout must be entered before"
        self._due_s = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._due_s, self._expire)

    def close(self) -> None:
        """Cancel the timer; no step follows."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        assert self._loop is not None
        self._timer = None
        if self._task is None or self._due_s == math.inf:
            return
        if self._loop.time() < self._due_s:
            self._timer = self._loop.call_at(self._due_s, self._expire)
            return
        self._has_expired = True
        self._task.cancel()
