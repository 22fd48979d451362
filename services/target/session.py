"""One sequence at a target: updates in, verifications out."""

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
        """Answers one step.

        Raises:
            StaleState: The kept tokens are not known here.
            InvalidRequest: A field breaks a limit; distributions are looked at last.
        """
        length = step.update.keep + len(step.update.tokens)
        if step.num_drafts >= length:
            raise InvalidRequest.of("num_drafts", f"is {step.num_drafts}, must be below {length}, the length")
        self._sequence.apply(step.update)
        job = self._sequence.score(step.num_drafts + 1, self._proposals(step))
        scores, times = await self._engine.run_timed(job, self._sequence.opening.priority)
        return Verification(
            step.update.step_id,
            scores.choices,
            scores.entropies,
            frozenset(index for index, is_excluded in enumerate(scores.excluded) if is_excluded),
            scores.logprobs,
            times=times,
            load=self._engine.load(),
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Nothing is remembered here of a sequence that is over."""

    def _proposals(self, step: VerifyStep) -> tuple[SparseDistribution, ...]:
        """What the drafts were drawn from, where the sequence's coupling asks for it."""
        sampling = self._sequence.opening.sampling
        if sampling.coupling is not Coupling.REJECTION or sampling.temperature == 0:
            return ()
        drafts = self._sequence.tokens.ids[len(self._sequence) - step.num_drafts :]
        if faults := [*check_distributions(step.distributions, drafts, self._engine.info.vocab_size)]:
            raise InvalidRequest(*faults)
        return step.distributions
