"""One sequence at a drafter: updates in, drafts out."""

from fly.errors import InvalidRequest
from fly.messages import Draft, DraftStep
from services.drafter.drafting import Guesser, draft
from services.engine.engine import Engine
from services.engine.sequence import EngineSequence


class DraftSession:
    """Applies steps to an engine sequence and drafts after it."""

    def __init__(self, engine: Engine, sequence: EngineSequence, guesser: Guesser, max_draft: int) -> None:
        self._engine = engine
        self._sequence = sequence
        self._guesser = guesser
        self._max_draft = max_draft

    async def step(self, step: DraftStep) -> Draft:
        """Answers one step.

        Raises:
            StaleState: The kept tokens are not known here.
            InvalidRequest: A field breaks a limit.
        """
        if step.max_tokens > self._max_draft:
            raise InvalidRequest.of("max_tokens", f"is {step.max_tokens}, must be at most {self._max_draft}")
        self._sequence.apply(step.update)
        room = self._engine.context_length - len(self._sequence)
        num_tokens = min(step.max_tokens, room) if len(self._sequence) else 0
        opening = self._sequence.opening
        ending_ids = opening.sampling.ending_ids if step.end_at_stop else frozenset[int]()
        job = draft(self._sequence, num_tokens, ending_ids, self._guesser)
        drafted, times = await self._engine.run_timed(job, opening.priority)
        return Draft(
            step.update.step_id,
            drafted.tokens,
            forwards=drafted.forwards,
            supplied=drafted.supplied,
            distributions=drafted.distributions,
            times=times,
            load=self._engine.load(),
        )
