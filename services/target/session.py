"""The session of a target, whatever computes the model: it checks a step, has it scored, and answers it."""

from abc import ABC, abstractmethod

from fly.errors import InvalidRequest, refuse
from fly.limits import check_distributions
from fly.messages import Extend, StepTimes, Verification, VerifyStep
from fly.sequence import SequenceUpdate
from fly.types import SparseDistribution
from services.engine.base import Scores
from services.engine.interface import RunningEngine
from services.engine.sequence import EngineSequence
from services.engine.vllm.sequence import VllmSequence


class Target:
    """Base of a `TargetEngine` around a running engine; `open` is its own."""

    def __init__(self, engine: RunningEngine) -> None:
        self.info, self.load = engine.info, engine.load
        self.failure, self.stop = engine.failure, engine.stop


class TargetSession(ABC):
    """Applies steps to a sequence, and answers with the scores of its last positions."""

    def __init__(self, engine: RunningEngine, sequence: EngineSequence | VllmSequence) -> None:
        self._running, self._replica = engine, sequence

    async def step(self, step: VerifyStep | Extend) -> Verification:
        """Apply the update of a step; score its drafts, or decode after it."""
        _check(step)
        scores, times = await self._score(step)
        opening = self._replica.opening
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
            load=self._running.load(),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Do nothing: a target stores nothing of finished sequences."""
        return

    @abstractmethod
    async def _score(self, step: VerifyStep | Extend) -> tuple[Scores, StepTimes]:
        """Apply the update of a step and do its work."""

    def _proposals(self, step: VerifyStep) -> tuple[SparseDistribution, ...]:
        """Return the distributions of the drafts, if the sequence's coupling needs them."""
        if not self._replica.opening.sampling.needs_distributions:
            return ()
        tokens = self._replica.tokens
        drafts = tokens.ids[len(tokens) - step.num_drafts :]
        refuse(check_distributions(step.distributions, drafts, self._running.info.vocab_size))
        return step.distributions


def _check(step: VerifyStep | Extend) -> None:
    """Raise `InvalidRequest` if a step has nothing to score, before its update is applied."""
    length = step.update.keep + len(step.update.tokens)
    if isinstance(step, VerifyStep):
        if step.num_drafts >= length:
            raise InvalidRequest.of("num_drafts", f"is {step.num_drafts}, must be below {length}, the length")
    elif step.max_tokens < 1 or length < 1:
        raise InvalidRequest.of(
            "max_tokens", f"is {step.max_tokens} after {length} tokens, both must be at least 1"
        )
