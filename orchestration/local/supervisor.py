"""Keep a service of a local run up: start it again after it has ended by itself."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from flyserve.core.errors import ConfigError, NotReady
from orchestration.local.processes import ServiceProcess
from orchestration.local.service_log import limit_size
from services.common.channel import Backoff

Report = Callable[[str], None]
"""Receives one line for people about each restart; raises nothing."""
Start = Callable[[Sequence[str]], AbstractContextManager[ServiceProcess]]
"""Starts the service at these addresses, or where its configuration says if there are none."""


@dataclass(frozen=True, slots=True)
class RestartLimit:
    """The most restarts of a service within a time."""

    most: int = 5
    within_s: float = 600.0


class SupervisedService:
    """A service process, and those that replace it, for the block.

    A replacement has the addresses of the first process, so clients find it there.

    Attributes:
        process: The process that runs, or was the last one to run.
    """

    def __init__(self, start: Start, limit: RestartLimit) -> None:
        self._start, self._limit = start, limit
        self._running = ExitStack()
        self._restarts: deque[float] = deque()
        self._backoff = Backoff()

    def __enter__(self) -> Self:
        self.process = self._running.enter_context(self._start(()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.__exit__(kind, error, trace)

    def keep_up(self, timeout_s: float, report: Report) -> None:
        """Wait up to `timeout_s` for the process to end by itself; if it does, start another one.

        The log of the process is kept within its limit.

        Raises:
            NotReady: It has ended more often than the limit allows. A start that the system refuses counts
                only after it has done so for the time of the limit.
        """
        if self.process.has_ended(timeout_s):
            self._restart(self.process.exit_reason(), report)
        limit_size(self.process.log)

    def _restart(self, reason: str, report: Report) -> None:
        name, pauses = self.process.name, Backoff()
        end = time.monotonic() + self._limit.within_s
        while self._has_restart_left():
            number = f"restart {len(self._restarts)} of at most {self._limit.most}"
            report(f"the {name} {reason}; {number}; log: {self.process.log}")
            time.sleep(self._backoff.next_s() if len(self._restarts) > 1 else 0.0)
            self._running.close()
            try:
                self.process = self._running.enter_context(self._start(self.process.addresses))
            except (ConfigError, NotReady, OSError) as error:
                reason = f"could not be started again: {error}"
                if isinstance(error, OSError) and time.monotonic() < end:
                    # Not the fault of the service, as on a full disk: this try does not count.
                    self._restarts.pop()
                    time.sleep(pauses.next_s())
            else:
                report(f"the {name} serves again at {', '.join(self.process.addresses)}")
                return
        limit = f"{self._limit.most} times within {self._limit.within_s:g} s"
        raise NotReady(f"the {name} {reason}; it is restarted at most {limit}")

    def _has_restart_left(self) -> bool:
        """Count another restart, unless the limit is reached."""
        now = time.monotonic()
        while self._restarts and self._restarts[0] <= now - self._limit.within_s:
            self._restarts.popleft()
        if not self._restarts:
            self._backoff = Backoff()
        if len(self._restarts) >= self._limit.most:
            return False
        self._restarts.append(now)
        return True
