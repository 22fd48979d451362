"""The builtin engine as a target: applies steps to its sequences and scores their last positions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fly.messages import Extend, Open, StepTimes, VerifyStep
from services.common.telemetry.instrumented_stream import VerifySteps
from services.engine.base import Job, Scores
from services.engine.engine import Engine
from services.engine.future import WaitReport
from services.engine.sequence import EngineSequence
from services.target.session import Target, TargetSession


class BuiltinTarget(Target):
    """A `TargetEngine` on a running builtin or simulated engine."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._engine = engine

    @asynccontextmanager
    async def open(self, opening: Open, report: WaitReport | None = None) -> AsyncIterator[VerifySteps]:
        sequence = await self._engine.open(opening, report=report)
        try:
            yield VerifySession(self._engine, sequence, report)
        finally:
            self._engine.close(sequence)


class VerifySession(TargetSession):
    """Runs each step as a job of the engine."""

    def __init__(self, engine: Engine, sequence: EngineSequence, report: WaitReport | None) -> None:
        """Serve an open sequence; call `report` when a step has to wait for memory."""
        super().__init__(engine, sequence)
        self._engine = engine
        self._sequence = sequence
        self._report = report

    async def _score(self, step: VerifyStep | Extend) -> tuple[Scores, StepTimes]:
        self._sequence.apply(step.update)
        return await self._engine.run_timed(self._job(step), self._sequence.opening.priority, self._report)

    def _job(self, step: VerifyStep | Extend) -> Job[Scores]:
        """Return the work of a step whose update is applied."""
        if isinstance(step, Extend):
            return self._sequence.decode(step.max_tokens, step.without_entropies)
        return self._sequence.score(step.num_drafts + 1, self._proposals(step))
