"""The engine of simulated models: waits on a clock instead of computing."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from flyserve.core.clock import Clock
from services.engine.base import ForwardInput, RunnerLost, Scorer
from services.engine.config import ModelSection
from services.engine.engine import Command, Engine
from services.engine.future import Delivery, EngineFuture, deliver_all, deliver_here
from services.engine.scheduling.scheduler import ScheduledJob, forward_inputs


class TimedScorer(Scorer, Protocol):
    """A scorer whose forwards take no real time, and which reports the time that they would take."""

    def forward_s(self, batch: Sequence[ForwardInput]) -> float:
        """Return the simulated seconds of a forward of this batch."""


class ClockEngine(Engine):
    """An engine that runs as a task of the event loop."""

    def __init__(self, scorer: TimedScorer, clock: Clock, config: ModelSection | None = None) -> None:
        super().__init__(scorer, config or ModelSection(), clock)
        self._scorer = scorer
        self._clock = clock
        self._inbox: deque[Command] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._is_running = True
        self._failure = EngineFuture()
        self._task = asyncio.create_task(self._serve(), name="flyserve-engine")

    async def stop(self) -> None:
        if self._task is None:
            return
        self._is_running = False
        task, self._task = self._task, None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        deliver_all(self._end_all())

    def _post(self, command: Command) -> None:
        self._inbox.append(command)
        self._wake.set()

    def _now_ns(self) -> int:
        return int(self._clock.now() * 1e9)

    async def _serve(self) -> None:
        try:
            await self._compute()
        except Exception:
            deliver_all([*self._fail(), *self._end_all()])

    def _end_all(self) -> Sequence[Delivery]:
        refused = [delivery for command in self._inbox for delivery in self._refuse(command)]
        self._inbox.clear()
        return [*refused, *self._abort()]

    async def _compute(self) -> None:
        while True:
            if not self._core.has_work:
                await self._wake.wait()
            self._take_commands()
            await self._wait_for_jobs()
            batch = self._core.next_batch() if self._core.has_work else []
            self._deliver()
            if batch:
                await self._forward(batch)

    def _take_commands(self) -> None:
        self._wake.clear()
        while self._inbox:
            self._carry_out(self._inbox.popleft())

    async def _wait_for_jobs(self) -> None:
        """Call arriving commands until the forward should wait for no more jobs."""
        while self._core.has_work and (wait_s := self._core.wait_s()) > 0:
            self._deliver()
            waits = (self._wake.wait(), self._clock.sleep(wait_s))
            ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(each) for each in waits]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
            self._take_commands()

    async def _forward(self, batch: Sequence[ScheduledJob]) -> None:
        parts = [batch]
        while parts:
            part = parts.pop()
            started_ns, inputs = self._now_ns(), forward_inputs(part)
            try:
                scores = self._scorer.forward(inputs)
            except RunnerLost:
                raise
            except Exception as error:
                parts += self._core.fail(part, error)
            else:
                await self._clock.sleep(self._scorer.forward_s(inputs))
                self._core.complete(part, scores, started_ns, self._now_ns() - started_ns)
            self._deliver()

    def _deliver(self) -> None:
        deliver_here(self._core.take_deliveries())
