"""One sequence at a drafter: updates in, drafts out."""

import contextlib
from dataclasses import dataclass

from fly.errors import InvalidRequest
from fly.messages import Draft, DraftStep, StepTimes
from fly.sequence import SequenceUpdate, StaleState
from services.drafter.ahead import DraftAhead, confirms
from services.drafter.drafting import Drafted, Drafting
from services.drafter.help import SubDrafterSession
from services.engine.engine import Engine
from services.engine.sequence import EngineSequence


@dataclass(frozen=True, slots=True)
class DraftingLimits:
    """How a drafter drafts.

    Attributes:
        max_draft: Longest draft that one step may ask for.
        ahead_sequences: Most open sequences with which it goes on drafting after its answer, as if all of it
            were accepted.
    """

    max_draft: int = 64
    ahead_sequences: float = 0


class DraftSession:
    """Applies steps to an engine sequence and drafts after it."""

    def __init__(
        self, engine: Engine, sequence: EngineSequence, help: SubDrafterSession, limits: DraftingLimits
    ) -> None:
        self._engine = engine
        self._sequence = sequence
        self._help = help
        self._proposer = help.proposer
        self._limits = limits
        self._ahead = DraftAhead(engine, sequence)

    async def step(self, step: DraftStep) -> Draft:
        """Answers one step.

        Raises:
            StaleState: The kept tokens are not known here.
            InvalidRequest: A field breaks a limit.
        """
        limit = self._limits.max_draft
        if step.max_tokens > limit:
            raise InvalidRequest.of("max_tokens", f"is {step.max_tokens}, must be at most {limit}")
        drafting, dropped = await self._begin(step)
        drafted_ahead, forwards_ahead = drafting.num_tokens, drafting.forwards
        times = await self._draft(drafting)
        drafted = drafting.result()
        forwards = drafted.forwards - forwards_ahead
        counts = self._proposer.saw_draft(forwards, times.forward_ns * 1e-9, drafted.sub_drafter_tokens)
        if drafted.tokens:
            self._go_on(drafted, drafting)
        return Draft(
            step.update.step_id,
            drafted.tokens,
            forwards=drafted.forwards,
            sub_drafter_tokens=drafted.sub_drafter_tokens,
            distributions=drafted.distributions,
            times=times,
            load=self._engine.load(),
            proposals=counts,
            drafted_ahead=drafted_ahead,
            dropped_ahead=dropped,
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Passes on what the sequence came to; one that cannot be applied is not passed on."""
        if (ahead := await self._ahead.stop()) is not None:
            self._sequence.truncate(ahead.start)
        with contextlib.suppress(StaleState, InvalidRequest):
            self._sequence.apply(last)
            self._help.conclude(self._sequence.tokens.ids, self._sequence.decided)

    async def close(self) -> None:
        """Ends what still runs for the sequence."""
        await self._ahead.stop()

    async def _begin(self, step: DraftStep) -> tuple[Drafting, int]:
        """Takes the update over; the draft, with what is there of it, and the tokens drafted in vain."""
        ahead = await self._ahead.stop()
        ending_ids = self._sequence.opening.sampling.ending_ids if step.end_at_stop else frozenset[int]()
        if ahead is not None:
            num_ahead = ahead.num_tokens
            if ahead.ending_ids == ending_ids and confirms(self._sequence, step.update, ahead.start):
                self._sequence.decided = step.update.decided
                length = step.update.keep + len(step.update.tokens)
                ahead.advance(length, self._room(step.max_tokens, length))
                return ahead, 0
            self._sequence.truncate(ahead.start)
        self._sequence.apply(step.update)
        max_tokens = self._room(step.max_tokens, len(self._sequence))
        drafting = Drafting(self._sequence, max_tokens, ending_ids, self._proposer)
        return drafting, 0 if ahead is None else num_ahead

    def _room(self, max_tokens: int, length: int) -> int:
        """Tokens that may be drafted behind the first `length`, at most `max_tokens`."""
        return min(max_tokens, self._engine.context_length - length) if length else 0

    async def _draft(self, drafting: Drafting) -> StepTimes:
        """Drafts to the end, and waits for the sub-drafter in between where that is worth it."""
        times = StepTimes()
        priority = self._sequence.opening.priority
        while drafting.room > 0:
            if self._proposer.is_worth_waiting:
                await self._proposer.wait()
            _, spent = await self._engine.run_timed(drafting.job(may_pause=True), priority)
            times = _sum(times, spent)
        return times

    def _go_on(self, drafted: Drafted, drafting: Drafting) -> None:
        """What is done while the draft is being verified."""
        sequence, ending_ids = self._sequence, self._sequence.opening.sampling.ending_ids
        if not ending_ids.isdisjoint(drafted.tokens):
            return
        # One more than the next draft will have: the target's own token comes before it.
        room = self._room(drafting.max_tokens + 1, len(sequence))
        self._proposer.tell(sequence, room)
        if room > 1 and self._engine.load().sequences <= self._limits.ahead_sequences:
            self._ahead.start(Drafting(sequence, room, drafting.ending_ids, self._proposer))


def _sum(one: StepTimes, other: StepTimes) -> StepTimes:
    """Of two runs of one step."""
    return StepTimes(
        one.queue_ns + other.queue_ns,
        one.forward_ns + other.forward_ns,
        max(one.batch_size, other.batch_size),
    )
