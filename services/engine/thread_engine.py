"""The engine of real models: one thread owns the scorer, its memory and all jobs."""

import asyncio
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence

from flyserve.core.clock import SystemClock
from services.engine.base import Keepalive, RunnerLost, Scorer
from services.engine.config import ModelSection
from services.engine.engine import Command, Engine
from services.engine.future import EngineFuture, deliver_all
from services.engine.grammars import EngineGrammars
from services.engine.scheduling.scheduler import ScheduledJob, forward_inputs

_SWITCH_INTERVAL_S = 0.0002


class ThreadEngine(Engine):
    """An engine that computes on its own thread."""

    def __init__(
        self,
        scorer: Scorer,
        config: ModelSection | None = None,
        keepalive: Keepalive | None = None,
        prepare_thread: Callable[[], object] = lambda: None,
        grammars: EngineGrammars | None = None,
    ) -> None:
        """Take ownership of a scorer; `keepalive` is called while it is idle, and closed at the end.

        `prepare_thread` is called first on the engine's thread; without `grammars` there are no grammars.
        """
        super().__init__(scorer, config or ModelSection(), SystemClock(), grammars)
        self._scorer = scorer
        self._keepalive = keepalive
        self._keepalive_due_s = 0.0
        self._prepare_thread = prepare_thread
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._is_stopping = False
        self._has_ended = False
        self._thread = threading.Thread(target=self._serve, name="flyserve-engine", daemon=True)

    async def start(self) -> None:
        # NOTE: the event loop must not hold the interpreter for the default 5 ms, the time of many forwards.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        if self._grammars is not None:
            await self._grammars.start()
        self._is_running = True
        self._failure = EngineFuture()
        self._thread.start()

    async def stop(self) -> None:
        self._is_running = False
        if not self._thread.is_alive():
            return
        if not self._is_stopping:
            self._is_stopping = True
            if self._grammars is not None:
                await self._grammars.stop()
            self._inbox.put(Command(self._end))
        # NOTE: not on the event loop: a running forward, and a keepalive whose followers hang, take long.
        await asyncio.to_thread(self._thread.join)

    def _post(self, command: Command) -> None:
        self._inbox.put(command)

    def _now_ns(self) -> int:
        return time.perf_counter_ns()

    def _serve(self) -> None:
        try:
            self._prepare_thread()
            while not self._has_ended:
                self._take_commands()
                self._wait_for_jobs()
                batch = self._core.next_batch()
                deliver_all(self._core.take_deliveries())
                if batch:
                    self._forward(batch)
        except Exception:
            deliver_all(self._fail())
            while not self._inbox.empty():
                deliver_all(self._refuse(self._inbox.get()))
        finally:
            if self._keepalive is not None:
                self._keepalive.close()
        # NOTE: commands arrive after a failure, until `stop`: some callers cannot know of it yet.
        while not self._has_ended:
            deliver_all(self._refuse(self._inbox.get()))

    def _take_commands(self) -> None:
        """Call the commands that have arrived; wait for one while there is nothing to compute."""
        if not self._core.has_work:
            command: Command | None = None
            while command is None:
                with contextlib.suppress(queue.Empty):
                    command = self._inbox.get(timeout=self._keep_alive())
            self._carry_out(command)
        self._call_commands()

    def _call_commands(self) -> None:
        while not self._inbox.empty():
            self._carry_out(self._inbox.get())

    def _wait_for_jobs(self) -> None:
        """Call arriving commands for as long as the next forward should wait for more jobs."""
        while (wait_s := self._core.wait_s()) > 0:
            deliver_all(self._core.take_deliveries())
            with contextlib.suppress(queue.Empty):
                self._carry_out(self._inbox.get(timeout=wait_s))
                self._call_commands()

    def _keep_alive(self) -> float | None:
        """Call the keepalive if it is due; return the seconds until it is due again."""
        if self._keepalive is None:
            return None
        now_s = time.monotonic()
        if now_s >= self._keepalive_due_s:
            self._keepalive.on_idle()
            self._keepalive_due_s = now_s + self._keepalive.idle_interval_s
        return self._keepalive_due_s - now_s

    def _forward(self, batch: Sequence[ScheduledJob]) -> None:
        parts = [batch]
        while parts:
            part = parts.pop()
            started_ns = time.perf_counter_ns()
            try:
                scores = self._scorer.forward(forward_inputs(part))
            except RunnerLost:
                raise
            except Exception as error:
                parts += self._core.fail(part, error)
            else:
                self._core.complete(part, scores, started_ns, time.perf_counter_ns() - started_ns)
            deliver_all(self._core.take_deliveries())

    def _end(self) -> None:
        self._has_ended = True
        deliver_all(self._abort())
