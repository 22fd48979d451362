"""A timeout for one step after the other, where `asyncio.timeout` would cost as much as half a step."""

import asyncio
from types import TracebackType
from typing import Self


class StepTimeout:
    """Interrupts a task whose step takes too long; entered for each step, by one task at a time.

    Setting it is an assignment: its one timer is left to ring and to see for itself how much time there is
    left. So it may ring for nobody, once; `close` ends that.
    """

    def __init__(self, timeout_s: float) -> None:
        """Every step may take so long."""
        self._timeout_s = timeout_s
        self._due_s = 0.0
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._rang = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        """A step begins; leaving the block raises TimeoutError where it took too long."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._task = task = asyncio.current_task(self._loop)
        assert task is not None, "an step_timeout interrupts a task"
        self._cancelling, self._rang = task.cancelling(), False
        self._due_s = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._due_s, self._ring)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        if not self._rang:
            return
        assert task is not None
        # NOTE: as `asyncio.timeout` does: whoever else cancelled the task meanwhile still wants it to end.
        if task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def close(self) -> None:
        """No step follows."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        assert self._loop is not None
        self._timer = None
        if self._task is None:
            return
        if self._loop.time() < self._due_s:
            self._timer = self._loop.call_at(self._due_s, self._ring)
            return
        self._rang = True
        self._task.cancel()
