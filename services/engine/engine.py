"""The engine as its service sees it: open sequences, run jobs on them, from any event loop."""

import asyncio
import contextlib
import logging
import queue
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fly.clock import Clock, SystemClock
from fly.errors import NotReady
from fly.messages import Load, ModelInfo, Open, StepTimes
from services.engine.background import BackgroundJob
from services.engine.base import Job, Runner, RunnerLost, Upkeep
from services.engine.config import ModelSection
from services.engine.core import EngineCore
from services.engine.opening import check_opening
from services.engine.promise import Promise, deliver_all
from services.engine.scheduler import BACKGROUND
from services.engine.sequence import EngineSequence
from services.engine.ticket import Ticket, works

logger = logging.getLogger(__name__)

_SWITCH_INTERVAL_S = 0.0002
T = TypeVar("T")
Command = Callable[[], None]


class ForwardError(RuntimeError):
    """A forward raised; the jobs that took part in it have ended, the engine goes on."""


class Engine(ABC):
    """Runs jobs of many sequences in shared forwards.

    Attributes:
        info: What it serves; its context is no longer than memory can hold.
    """

    def __init__(self, runner: Runner, config: ModelSection, clock: Clock) -> None:
        self._core = EngineCore(runner, config.max_batch_tokens, config.max_queued, clock)
        self.info: ModelInfo = replace(runner.info, context_length=self._core.context_length)
        self._holder = "the context" if self.info == runner.info else "KV memory"
        self._is_running = False
        self._failure: Promise | None = None

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens, by the model and by memory."""
        return self._core.context_length

    def load(self) -> Load:
        """What it carries now."""
        return self._core.load()

    async def open(self, opening: Open) -> EngineSequence:
        """A new sequence; waits while every place is taken.

        Raises:
            InvalidRequest: It cannot be served.
            Overloaded: Too many wait already.
            NotReady: The engine does not run.
        """
        check_opening(opening, self.info.vocab_size, self.context_length, self._holder)
        promise = self._promise()
        self._post(partial(self._core.open, opening, promise))
        try:
            sequence = await promise.wait()
        except asyncio.CancelledError:
            self._post(partial(self._core.abandon, promise))
            raise
        assert isinstance(sequence, EngineSequence)
        return sequence

    def close(self, sequence: EngineSequence) -> None:
        """Frees the sequence; returns at once. Closing twice does nothing."""
        if self._is_running:
            self._post(partial(self._core.close, sequence))

    async def run(self, job: Job[T], priority: int = 0) -> T:
        """Runs a job to its end; cancelling the coroutine ends the job before its next forward.

        Raises:
            Exception: Whatever the job raises, `StaleState` among it.
            ForwardError: The model failed.
            NotReady: The engine does not run.
        """
        result, _ = await self.run_timed(job, priority)
        return result

    async def run_timed(self, job: Job[T], priority: int = 0) -> tuple[T, StepTimes]:
        """As `run`, with the job's time in the queue and in forwards."""
        promise = self._promise()
        self._post(partial(self._core.submit, job, priority, self._now_ns(), promise))
        try:
            result, times = await promise.wait()
        except asyncio.CancelledError:
            self._post(partial(self._core.cancel, promise))
            raise
        return result, times

    def run_in_background(self, job: Job[Any]) -> BackgroundJob:
        """Runs a job in forwards of its own, only while no other job wants one.

        Its sequence belongs to it until `BackgroundJob.end` returns. What it returns or raises is not told.

        Raises:
            NotReady: The engine does not run.
        """
        promise = self._promise()
        self._post(partial(self._core.submit, job, BACKGROUND, self._now_ns(), promise))
        return BackgroundJob(promise, self._cancel)

    async def _cancel(self, promise: Promise) -> None:
        """Returns when the job that the promise stands for has ended; at once where the engine has."""
        if not self._is_running:
            return
        done = Promise()
        self._post(partial(self._core.cancel, promise))
        self._post(partial(self._core.keep, done))
        await done.wait()

    async def failure(self) -> None:
        """Returns when a running engine has failed: it serves no more."""
        if self._failure is None:
            raise NotReady("the engine does not run")
        await self._failure.wait()

    @abstractmethod
    async def start(self) -> None:
        """Begins to serve."""

    @abstractmethod
    async def stop(self) -> None:
        """Ends all jobs with `NotReady`, and its thread or task; stopping twice does nothing."""

    @abstractmethod
    def _post(self, command: Command) -> None:
        """Has the command called between two forwards."""

    @abstractmethod
    def _now_ns(self) -> int:
        """Nanoseconds on the engine's clock."""

    def _promise(self) -> Promise:
        if not self._is_running:
            raise NotReady("the engine does not run")
        return Promise()


class ThreadEngine(Engine):
    """An engine for real models: one thread owns the runner and everything that belongs to it."""

    def __init__(
        self, runner: Runner, config: ModelSection | None = None, upkeep: Upkeep | None = None
    ) -> None:
        """Takes the runner over.

        Args:
            runner: Computes.
            config: Limits of a forward and of the queue.
            upkeep: What the runner needs besides, until the engine ends.
        """
        super().__init__(runner, config or ModelSection(), SystemClock())
        self._runner = runner
        self._upkeep = upkeep
        self._upkeep_due_s = 0.0
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._has_ended = False
        self._thread = threading.Thread(target=self._serve, name="flyserve-engine", daemon=True)

    async def start(self) -> None:
        # NOTE: the event loop must not keep the interpreter for the usual 5 ms: that is many small forwards.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._is_running = True
        self._failure = Promise()
        self._thread.start()

    async def stop(self) -> None:
        if not self._is_running:
            return
        self._is_running = False
        stopped = Promise()
        self._inbox.put(partial(self._end, stopped))
        await stopped.wait()
        self._thread.join()

    def _post(self, command: Command) -> None:
        self._inbox.put(command)

    def _now_ns(self) -> int:
        return time.perf_counter_ns()

    def _serve(self) -> None:
        try:
            while not self._has_ended:
                self._take_commands()
                self._gather()
                batch = self._core.begin()
                deliver_all(self._core.take_answers())
                if batch:
                    self._forward(batch)
                    deliver_all(self._core.take_answers())
        except Exception:
            logger.exception("the engine's thread failed: it serves no more")
            self._is_running = False
            self._core.abort()
            deliver_all([*self._core.take_answers(), *filter(None, [self._failure])])
        finally:
            if self._upkeep is not None:
                self._upkeep.close()

    def _take_commands(self) -> None:
        """Calls what has come in; waits for something while there is nothing to compute."""
        if not self._core.has_work:
            self._next_command()()
        self._call_commands()

    def _call_commands(self) -> None:
        while not self._inbox.empty():
            self._inbox.get()()

    def _gather(self) -> None:
        """Calls what comes in as long as the next forward should wait for it."""
        while (wait_s := self._core.wait_s()) > 0:
            deliver_all(self._core.take_answers())
            with contextlib.suppress(queue.Empty):
                self._inbox.get(timeout=wait_s)()
                self._call_commands()

    def _next_command(self) -> Command:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._inbox.get(timeout=self._keep_up())

    def _keep_up(self) -> float | None:
        """Looks after the runner where that is due; seconds until it is due again."""
        if self._upkeep is None:
            return None
        now_s = time.monotonic()
        if now_s >= self._upkeep_due_s:
            self._upkeep.on_idle()
            self._upkeep_due_s = now_s + self._upkeep.idle_interval_s
        return self._upkeep_due_s - now_s

    def _forward(self, batch: Sequence[Ticket]) -> None:
        started_ns = time.perf_counter_ns()
        try:
            scores = self._runner.forward(works(batch))
        except RunnerLost:
            raise
        except Exception as error:
            self._core.fail(batch, forward_error(error, batch))
        else:
            self._core.finish(batch, scores, started_ns, time.perf_counter_ns() - started_ns)

    def _end(self, stopped: Promise) -> None:
        self._core.abort()
        self._core.keep(stopped)
        self._has_ended = True


def forward_error(error: Exception, batch: Sequence[Ticket]) -> ForwardError:
    """What the jobs of a failed forward are told; the log says more."""
    logger.exception("a forward of %d sequences failed", len(batch))
    failure = ForwardError(f"the forward failed: {type(error).__name__}")
    failure.__cause__ = error
    return failure
