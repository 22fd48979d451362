"""The session of one sequence at a drafter: apply updates, return drafts."""

import contextlib
import time
from dataclasses import dataclass

from fly.errors import InvalidRequest
from fly.messages import Draft, DraftStep, StepTimes
from fly.sequence import SequenceUpdate, StaleState
from services.drafter.drafting import Drafting, DraftResult, SubDrafterSession
from services.drafter.level_choice import LevelChoice, SequenceRounds
from services.engine.engine import Engine
from services.engine.future import IdleJob
from services.engine.sequence import EngineSequence

_MIN_FREE_MEMORY = 0.25
"""Share of KV memory that must be free for drafting ahead."""


class DraftAhead:
    """The draft of one sequence beyond the response that its client has.

    Between `start` and `stop` the sequence belongs to a background job, which yields to all other jobs of the
    engine.
    """

    def __init__(self, engine: Engine, sequence: EngineSequence) -> None:
        self._engine = engine
        self._sequence = sequence
        self._running: tuple[Drafting, IdleJob] | None = None

    def start(self, drafting: Drafting) -> None:
        """Start drafting in the background; do nothing if memory is scarce."""
        if self._has_memory():
            self._running = drafting, self._engine.run_when_idle(drafting.job())

    async def stop(self) -> Drafting | None:
        """End the job and return its draft, which stays at the end of the sequence; None if there is none."""
        running, self._running = self._running, None
        if running is None:
            return None
        drafting, job = running
        await job.cancel()
        return drafting

    def _has_memory(self) -> bool:
        """Return True if no sequence waits for memory and enough is free that none is evicted soon."""
        load = self._engine.load()
        return not load.queued and load.kv_capacity - load.kv_used >= load.kv_capacity * _MIN_FREE_MEMORY


def confirms(sequence: EngineSequence, update: SequenceUpdate, start: int) -> bool:
    """Return True if the update leaves the sequence as it is, except for the drafts from `start` on."""
    tokens, length = sequence.tokens, update.keep + len(update.tokens)
    return (
        sequence.decided <= update.keep <= start <= length <= len(tokens)
        and sequence.decided <= update.decided <= length
        and tokens.prefix_hash(update.keep) == update.prefix_hash
        and tuple(tokens.ids[update.keep : length]) == update.tokens
    )


@dataclass(frozen=True, slots=True)
class DraftingLimits:
    """Limits of drafting.

    Attributes:
        max_draft: Longest draft that one step may request, in tokens.
        ahead_sequences: Most open sequences with which the drafter drafts ahead; 0 never does.
        is_ahead_chosen: Draft ahead only while that pays, by the rounds so far.
    """

    max_draft: int = 64
    ahead_sequences: float = 0
    is_ahead_chosen: bool = False


class DraftSession:
    """The session of one stream, on one engine sequence."""

    def __init__(
        self,
        engine: Engine,
        sequence: EngineSequence,
        sub_drafter: SubDrafterSession,
        limits: DraftingLimits,
        ahead: LevelChoice | None = None,
    ) -> None:
        """Create a session; `ahead` is the replica's choice, if it drafts ahead only while that pays."""
        self._engine = engine
        self._sequence = sequence
        self._sub_drafter = sub_drafter
        self._proposer = sub_drafter.proposer
        self._limits = limits
        self._ahead = DraftAhead(engine, sequence)
        self._ahead_choice = ahead
        self._ahead_rounds = SequenceRounds(ahead) if ahead else None

    async def step(self, step: DraftStep) -> Draft:
        """Apply the update and draft after it."""
        limit = self._limits.max_draft
        if step.max_tokens > limit:
            raise InvalidRequest.of("max_tokens", f"is {step.max_tokens}, must be at most {limit}")
        drafting, dropped = await self._apply(step)
        drafted_ahead, forwards_ahead = drafting.num_tokens, drafting.forwards
        times = await self._draft(drafting)
        result = drafting.result()
        forwards = result.forwards - forwards_ahead
        if self._ahead_rounds:
            self._ahead_rounds.record_draft(len(result.tokens), time.perf_counter())
        counts = self._proposer.record_draft(
            len(result.tokens), forwards, times.forward_ns * 1e-9, result.sub_drafter_tokens
        )
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
        ahead = await self._ahead.stop()
        ending_ids = self._sequence.opening.sampling.ending_ids if step.end_at_stop else frozenset[int]()
        dropped = 0
        if ahead is not None:
            if ahead.ending_ids == ending_ids and confirms(self._sequence, step.update, ahead.start):
                self._sequence.decided = step.update.decided
                length = step.update.keep + len(step.update.tokens)
                ahead.advance(length, self._max_tokens(step.max_tokens, length))
                return ahead, 0
            dropped = ahead.num_tokens
            self._sequence.truncate(ahead.start)
        self._sequence.apply(step.update)
        max_tokens = self._max_tokens(step.max_tokens, len(self._sequence))
        return Drafting(self._sequence, max_tokens, ending_ids, self._proposer), dropped

    def _max_tokens(self, requested: int, length: int) -> int:
        """Return the longest draft after the first `length` tokens: `requested`, if the context allows it."""
        return min(requested, self._engine.context_length - length) if length else 0

    async def _draft(self, drafting: Drafting) -> StepTimes:
        """Draft to the end; wait for the sub-drafter in between if that is profitable."""
        times = StepTimes()
        priority = self._sequence.opening.priority
        while drafting.num_remaining > 0:
            if self._proposer.should_wait:
                await self._proposer.wait()
            _, spent = await self._engine.run_timed(drafting.job(may_pause=True), priority)
            times = _sum(times, spent)
        return times

    def _start_ahead(self, result: DraftResult, drafting: Drafting) -> None:
        """Start the work that runs while the target verifies: prefetch proposals, draft ahead."""
        sequence, ending_ids = self._sequence, self._sequence.opening.sampling.ending_ids
        if not ending_ids.isdisjoint(result.tokens):
            return
        # One more token than the next draft: the target's own token comes before that draft.
        max_tokens = self._max_tokens(drafting.max_tokens + 1, len(sequence))
        self._proposer.prefetch(sequence, max_tokens)
        is_possible = self._engine.load().sequences <= self._limits.ahead_sequences
        if max_tokens > 1 and is_possible and (self._ahead_choice is None or self._ahead_choice.is_used):
            self._ahead.start(Drafting(sequence, max_tokens, drafting.ending_ids, self._proposer))


def _sum(first: StepTimes, second: StepTimes) -> StepTimes:
    """Return the times of two consecutive runs of one step."""
    return StepTimes(
        queue_ns=first.queue_ns + second.queue_ns,
        forward_ns=first.forward_ns + second.forward_ns,
        batch_size=max(first.batch_size, second.batch_size),
        batch_tokens=max(first.batch_tokens, second.batch_tokens),
        prefill_tokens=first.prefill_tokens + second.prefill_tokens,
        reused_tokens=first.reused_tokens + second.reused_tokens,
    )
