"""The builtin engine as a target: applies steps to its sequences and scores their last positions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fly.errors import InvalidRequest, refuse
from fly.limits import check_distributions
from fly.messages import Extend, Load, ModelInfo, Open, Verification, VerifyStep
from fly.sequence import SequenceUpdate
from fly.types import Coupling, SparseDistribution
from services.common.telemetry.instrumented_stream import VerifySteps
from services.engine.base import Job, Scores
from services.engine.engine import Engine
from services.engine.future import WaitReport
from services.engine.sequence import EngineSequence


class BuiltinTarget:
    """A `TargetEngine` on a running builtin or simulated engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    def load(self) -> Load:
        return self._engine.load()

    @asynccontextmanager
    async def open(self, opening: Open, report: WaitReport | None = None) -> AsyncIterator[VerifySteps]:
        sequence = await self._engine.open(opening, report=report)
        try:
            yield VerifySession(self._engine, sequence, report)
        finally:
            self._engine.close(sequence)

    async def failure(self) -> None:
        await self._engine.failure()

    async def stop(self) -> None:
        await self._engine.stop()


class VerifySession:
    """Applies steps to an engine sequence and scores its last positions."""

    def __init__(self, engine: Engine, sequence: EngineSequence, report: WaitReport | None) -> None:
        """Serve an open sequence; call `report` when a step has to wait for memory."""
        self._engine = engine
        self._sequence = sequence
        self._report = report

    async def step(self, step: VerifyStep | Extend) -> Verification:
        """Apply the update of a step; score its drafts, or decode after it."""
        scores, times = await self._engine.run_timed(
            self._job(step), self._sequence.opening.priority, self._report
        )
        return Verification(
            step_id=step.update.step_id,
            choices=scores.choices,
            entropies=() if self._is_without_entropies(step) else scores.entropies,
            excluded_drafts=frozenset(
                index for index, is_excluded in enumerate(scores.excluded) if is_excluded
            ),
            logprobs=scores.logprobs,
            gaps=scores.gaps[:-1],
            times=times,
            load=self._engine.load(),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Do nothing: a target stores nothing of finished sequences."""

    def _is_without_entropies(self, step: VerifyStep | Extend) -> bool:
        return self._sequence.opening.without_entropies or (
            isinstance(step, Extend) and step.without_entropies
        )

    def _job(self, step: VerifyStep | Extend) -> Job[Scores]:
        """Apply the update of a step and return its work."""
        length = step.update.keep + len(step.update.tokens)
        if isinstance(step, Extend):
            if step.max_tokens < 1 or length < 1:
                raise InvalidRequest.of(
                    "max_tokens", f"is {step.max_tokens} after {length} tokens, both must be at least 1"
                )
            self._sequence.apply(step.update)
            return self._sequence.decode(step.max_tokens, step.without_entropies)
        if step.num_drafts >= length:
            raise InvalidRequest.of("num_drafts", f"is {step.num_drafts}, must be below {length}, the length")
        self._sequence.apply(step.update)
        return self._sequence.score(step.num_drafts + 1, self._proposals(step))

    def _proposals(self, step: VerifyStep) -> tuple[SparseDistribution, ...]:
        """Return the distributions of the drafts, if the sequence's coupling needs them."""
        sampling = self._sequence.opening.sampling
        if sampling.coupling is not Coupling.REJECTION or sampling.temperature == 0:
            return ()
        drafts = self._sequence.tokens.ids[len(self._sequence) - step.num_drafts :]
        refuse(check_distributions(step.distributions, drafts, self._engine.info.vocab_size))
        return step.distributions
