"""One sequence at a target: applies updates and returns verifications."""

from fly.errors import InvalidRequest
from fly.limits import check_distributions
from fly.messages import Verification, VerifyStep
from fly.sequence import SequenceUpdate
from fly.types import Coupling, SparseDistribution
from services.engine.engine import Engine
from services.engine.sequence import EngineSequence


class VerifySession:
    """Applies steps to an engine sequence and scores its last positions."""

    def __init__(self, engine: Engine, sequence: EngineSequence) -> None:
        self._engine = engine
        self._sequence = sequence

    async def step(self, step: VerifyStep) -> Verification:
        """Apply the update of a step and score its drafts.

        Raises:
            StaleState: The kept tokens differ from those stored here, or were evicted.
            InvalidRequest: A field breaks a limit; distributions are checked last.
        """
        length = step.update.keep + len(step.update.tokens)
        if step.num_drafts >= length:
            raise InvalidRequest.of("num_drafts", f"is {step.num_drafts}, must be below {length}, the length")
        self._sequence.apply(step.update)
        job = self._sequence.score(step.num_drafts + 1, self._proposals(step))
        scores, times = await self._engine.run_timed(job, self._sequence.opening.priority)
        return Verification(
            step_id=step.update.step_id,
            choices=scores.choices,
            entropies=scores.entropies,
            excluded_drafts=frozenset(
                index for index, is_excluded in enumerate(scores.excluded) if is_excluded
            ),
            logprobs=scores.logprobs,
            times=times,
            load=self._engine.load(),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Do nothing: a target stores nothing of finished sequences."""

    def _proposals(self, step: VerifyStep) -> tuple[SparseDistribution, ...]:
        """Return the distributions of the drafts, if the sequence's coupling needs them."""
        sampling = self._sequence.opening.sampling
        if sampling.coupling is not Coupling.REJECTION or sampling.temperature == 0:
            return ()
        drafts = self._sequence.tokens.ids[len(self._sequence) - step.num_drafts :]
        if faults := [*check_distributions(step.distributions, drafts, self._engine.info.vocab_size)]:
            raise InvalidRequest(*faults)
        return step.distributions
