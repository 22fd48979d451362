"""An engine as a target: applies steps to its sequences and scores their last positions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flyserve.core.errors import InvalidRequest, refuse
from flyserve.core.limits import check_distributions
from flyserve.core.messages import Extend, Open, Verification, VerifyStep
from flyserve.core.sequence import SequenceUpdate
from flyserve.core.types import SparseDistribution
from services.common.telemetry.instrumented_stream import VerifySteps
from services.engine.base import Job, Scores
from services.engine.engine import Engine
from services.engine.future import WaitReport
from services.engine.sequence import EngineSequence


class BuiltinTarget:
    """A `TargetEngine` on a running engine, whatever computes its model."""

    def __init__(self, engine: Engine) -> None:
        self.info, self.load = engine.info, engine.load
        self.failure, self.stop = engine.failure, engine.stop
        self._engine = engine

    @asynccontextmanager
    async def open(self, opening: Open, report: WaitReport | None = None) -> AsyncIterator[VerifySteps]:
        sequence = await self._engine.open(opening, report=report)
        try:
            yield VerifySession(self._engine, sequence, report)
        finally:
            self._engine.close(sequence)


class VerifySession:
    """Applies steps to a sequence, runs each as a job of the engine, and answers with its scores."""

    def __init__(self, engine: Engine, sequence: EngineSequence, report: WaitReport | None) -> None:
        """Serve an open sequence; call `report` when a step has to wait for memory."""
        self._engine = engine
        self._sequence = sequence
        self._report = report

    async def step(self, step: VerifyStep | Extend) -> Verification:
        """Apply the update of a step; score its drafts, or decode after it."""
        _check(step, self._engine.info.plain_only)
        sequence, opening = self._sequence, self._sequence.opening
        sequence.apply(step.update)
        scores, times = await self._engine.run_timed(self._job(step), opening.priority, self._report)
        without_entropies = opening.without_entropies or (isinstance(step, Extend) and step.without_entropies)
        return Verification(
            step_id=step.update.step_id,
            choices=scores.choices,
            entropies=() if without_entropies else scores.entropies,
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
        return

    def _job(self, step: VerifyStep | Extend) -> Job[Scores]:
        """Return the work of a step whose update is applied."""
        if isinstance(step, Extend):
            return self._sequence.decode(step.max_tokens, step.without_entropies)
        return self._sequence.score(step.num_drafts + 1, self._proposals(step))

    def _proposals(self, step: VerifyStep) -> tuple[SparseDistribution, ...]:
        """Return the distributions of the drafts, if the sequence's coupling needs them."""
        if not self._sequence.opening.sampling.needs_distributions:
            return ()
        tokens = self._sequence.tokens
        drafts = tokens.ids[len(tokens) - step.num_drafts :]
        refuse(check_distributions(step.distributions, drafts, self._engine.info.vocab_size))
        return step.distributions


def _check(step: VerifyStep | Extend, plain_only: str) -> None:
    """Raise `InvalidRequest` if a step cannot be scored, before its update is applied."""
    length = step.update.keep + len(step.update.tokens)
    if isinstance(step, VerifyStep):
        if step.num_drafts and plain_only:
            raise InvalidRequest.of("num_drafts", f"is {step.num_drafts}, must be 0: {plain_only}")
        if step.num_drafts >= length:
            raise InvalidRequest.of("num_drafts", f"is {step.num_drafts}, must be below {length}, the length")
    elif step.max_tokens < 1 or length < 1:
        raise InvalidRequest.of(
            "max_tokens", f"is {step.max_tokens} after {length} tokens, both must be at least 1"
        )
