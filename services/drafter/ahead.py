"""Drafts beyond the response that the client has, made while the target verifies."""

import time
from dataclasses import dataclass

from flyserve.core.comparison import Comparison, RoundTimer
from services.drafter.drafting import Drafting
from services.engine.engine import Engine
from services.engine.future import IdleJob
from services.engine.sequence import EngineSequence

_MIN_FREE_MEMORY = 0.25
"""Share of KV memory that must be free for drafting ahead."""


@dataclass(frozen=True, slots=True)
class DraftingLimits:
    """Limits of drafting.

    Attributes:
        max_draft: Longest draft of one step, in tokens.
        ahead_sequences: Most open sequences with which the drafter drafts ahead; 0 never does.
        is_ahead_chosen: Draft ahead only while that pays, by the rounds so far.
    """

    max_draft: int = 64
    ahead_sequences: float = 0
    is_ahead_chosen: bool = False


class DraftAhead:
    """The draft of one sequence beyond the response that its client has.

    Between `start` and `stop` the sequence belongs to a background job, which yields to all other jobs of the
    engine.
    """

    def __init__(
        self, engine: Engine, sequence: EngineSequence, limits: DraftingLimits, comparison: Comparison | None
    ) -> None:
        """Create it; `comparison` is that of the replica's rounds, None if it always drafts ahead."""
        self._engine = engine
        self._sequence = sequence
        self._limits = limits
        self._comparison = comparison
        self._rounds = None if comparison is None else RoundTimer(comparison)
        self._running: tuple[Drafting, IdleJob] | None = None

    def record_draft(self, num_tokens: int) -> None:
        """Record that a draft has ended, for the comparison of drafting ahead and not."""
        if self._rounds is not None:
            self._rounds.record(num_tokens, time.perf_counter())

    def start(self, draft: Drafting, max_tokens: int) -> None:
        """Draft in the background after a finished draft, unless memory is scarce or it would not pay."""
        is_used = self._comparison is None or self._comparison.is_on
        if max_tokens < 2 or not self._is_possible() or not is_used:
            return
        drafting = draft.continued(max_tokens)
        self._running = drafting, self._engine.run_when_idle(drafting.job())

    async def stop(self) -> Drafting | None:
        """End the job and return its draft, which is part of the sequence; None if there is none."""
        running, self._running = self._running, None
        if running is None:
            return None
        drafting, job = running
        await job.cancel()
        return drafting

    def _is_possible(self) -> bool:
        """Return True if few sequences are open, none waits, and none will soon for lack of memory."""
        load = self._engine.load()
        if load.queued or load.sequences > self._limits.ahead_sequences:
            return False
        return load.kv_capacity - load.kv_used >= load.kv_capacity * _MIN_FREE_MEMORY
