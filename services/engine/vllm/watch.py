"""Notice when vLLM's engine has ended or hangs."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any


class EngineStats:
    """The latest statistics of vLLM's scheduler, which it sends after every forward.

    Attributes:
        waiting: Requests that wait in vLLM for KV memory or a forward.
        running: Requests in the latest forward.
        kv_usage: Share of the KV blocks that these requests hold.
        preemptions: Requests that lost their memory to others, since the start.
        reported_s: Time of the latest report, on the monotonic clock.
    """

    def __init__(self) -> None:
        self.waiting = 0
        self.running = 0
        self.kv_usage = 0.0
        self.preemptions = 0
        self.reported_s = time.monotonic()

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        """Record the statistics of one forward; called by vLLM."""
        self.reported_s = time.monotonic()
        if scheduler_stats is not None:
            self.waiting, self.running = scheduler_stats.num_waiting_reqs, scheduler_stats.num_running_reqs
            self.kv_usage = scheduler_stats.kv_cache_usage
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        """Do nothing; called by vLLM."""

    def log(self) -> None:
        """Do nothing; called by vLLM."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:
        """Do nothing; called by vLLM."""


class EngineWatch:
    """Watches the processes of an engine, and the reports of one that has work.

    Attributes:
        in_flight: Requests that the engine has now.
    """

    def __init__(
        self, pids: Iterable[int], stats: EngineStats, timeout_s: float, on_failure: Callable[[str], None]
    ) -> None:
        """Call `on_failure` once: when a process ends, or with work left no report comes for `timeout_s`."""
        self.in_flight = 0
        self._stats, self._timeout_s, self._on_failure = stats, timeout_s, on_failure
        self._loop = asyncio.get_running_loop()
        self._fds = [os.pidfd_open(pid) for pid in pids]
        for fd in self._fds:
            self._loop.add_reader(fd, self._fail, "the process of vLLM's engine has ended")
        self._busy_since_s = 0.0
        self._timer = self._loop.call_later(timeout_s / 4, self._check)

    @contextlib.contextmanager
    def request(self) -> Any:
        """Count one request."""
        if self.in_flight == 0:
            self._busy_since_s = time.monotonic()
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def close(self) -> None:
        """Stop watching; closing twice does nothing."""
        self._timer.cancel()
        for fd in self._fds:
            self._loop.remove_reader(fd)
            os.close(fd)
        self._fds.clear()

    def _check(self) -> None:
        silent_s = time.monotonic() - max(self._stats.reported_s, self._busy_since_s)
        if self.in_flight and silent_s > self._timeout_s:
            self._fail(f"vLLM's engine has reported nothing for {silent_s:.0f} s")
            return
        self._timer = self._loop.call_later(self._timeout_s / 4, self._check)

    def _fail(self, reason: str) -> None:
        self.close()
        self._on_failure(reason)
