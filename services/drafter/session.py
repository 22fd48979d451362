"""The session of one sequence at a drafter: apply updates, return drafts."""

import contextlib

from flyserve.core.comparison import Comparison
from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Draft, DraftStep, StepTimes
from flyserve.core.sequence import SequenceUpdate, StaleState
from services.drafter.ahead import DraftAhead, DraftingLimits
from services.drafter.drafting import Drafting, DraftResult, SubDrafterSession
from services.engine.engine import Engine
from services.engine.future import WaitReport
from services.engine.sequence import EngineSequence


def confirms(sequence: EngineSequence, update: SequenceUpdate, start: int) -> bool:
    """Return True if the update leaves the sequence as it is, except for the drafts from `start` on."""
    tokens, length = sequence.tokens, update.keep + len(update.tokens)
    return (
        sequence.decided <= update.keep <= start <= length <= len(tokens)
        and sequence.decided <= update.decided <= length
        and tokens.prefix_hash(update.keep) == update.prefix_hash
        and tuple(tokens.ids[update.keep : length]) == update.tokens
    )


class DraftSession:
    """The session of one stream, on one engine sequence."""

    def __init__(
        self,
        engine: Engine,
        sequence: EngineSequence,
        sub_drafter: SubDrafterSession,
        limits: DraftingLimits,
        ahead: Comparison | None = None,
        report: WaitReport | None = None,
    ) -> None:
        """Create a session; `ahead` is the replica's choice, if it drafts ahead only while that pays.

        `report` is called when a step has to wait for memory, and with each forward of a long prompt.
        """
        self._engine = engine
        self._sequence = sequence
        self._sub_drafter = sub_drafter
        self._proposer = sub_drafter.proposer
        self._limits = limits
        self._ahead = DraftAhead(engine, sequence, limits, ahead)
        self._report = report

    async def step(self, step: DraftStep) -> Draft:
        """Apply the update and draft after it."""
        drafting, dropped = await self._apply(step)
        drafted_ahead = drafting.num_tokens
        times = await self._draft(drafting)
        result = drafting.result()
        self._ahead.record_draft(len(result.tokens))
        counts = self._proposer.record_draft(len(result.tokens))
        if result.tokens:
            self._start_ahead(result, drafting)
        return Draft(
            step.update.step_id,
            result.tokens,
            forwards=result.forwards,
            sub_drafter_tokens=result.sub_drafter_tokens,
            distributions=result.distributions,
            times=times,
            load=self._engine.load(),
            proposals=counts,
            drafted_ahead=drafted_ahead,
            dropped_ahead=dropped,
        )

    async def finish(self, last: SequenceUpdate) -> None:
        """Apply the last update and send the final sequence to the sub-drafter; ignore an invalid update."""
        if (ahead := await self._ahead.stop()) is not None:
            self._sequence.truncate(ahead.start)
        with contextlib.suppress(StaleState, InvalidRequest):
            self._sequence.apply(last)
            self._sub_drafter.finish(self._sequence.tokens.ids, self._sequence.decided)

    async def close(self) -> None:
        """Stop drafting ahead."""
        await self._ahead.stop()

    async def _apply(self, step: DraftStep) -> tuple[Drafting, int]:
        """Apply the update; return the draft so far, and the number of tokens drafted ahead but dropped."""
        ahead, update = await self._ahead.stop(), step.update
        ending_ids = self._sequence.opening.sampling.ending_ids if step.end_at_stop else frozenset[int]()
        length, dropped = update.keep + len(update.tokens), 0
        max_tokens = self._max_tokens(step.max_tokens, length)
        if ahead is not None:
            if ahead.ending_ids == ending_ids and confirms(self._sequence, update, ahead.start):
                self._sequence.decided = update.decided
                ahead.advance(length, max_tokens)
                return ahead, 0
            dropped = ahead.num_tokens
            self._sequence.truncate(ahead.start)
        self._sequence.apply(update)
        return Drafting(self._sequence, max_tokens, ending_ids, self._proposer), dropped

    def _max_tokens(self, requested: int, length: int) -> int:
        """Return the longest draft after the first `length` tokens: `requested`, if the limits allow it.

        NOTE: a client does not know the longest draft of a replica, so a longer one is cut and not refused.
        """
        return min(requested, self._limits.max_draft, self._engine.context_length - length) if length else 0

    async def _draft(self, drafting: Drafting) -> StepTimes:
        """Draft to the end."""
        if drafting.num_remaining <= 0:
            return StepTimes()
        _, times = await self._engine.run_timed(drafting.job(), self._sequence.opening.priority, self._report)
        return times

    def _start_ahead(self, result: DraftResult, drafting: Drafting) -> None:
        """Start the work that runs while the target verifies: prefetch proposals, draft ahead."""
        sequence, ending_ids = self._sequence, self._sequence.opening.sampling.ending_ids
        if not ending_ids.isdisjoint(result.tokens):
            return
        # One more token than the next draft: the target's own token comes before that draft.
        max_tokens = min(drafting.max_tokens + 1, self._engine.context_length - len(sequence))
        self._proposer.prefetch(sequence)
        self._ahead.start(drafting, max_tokens)
