"""Drafting ahead: while the target verifies, extend the draft as if all of it were accepted."""

from dataclasses import dataclass

from fly.sequence import SequenceUpdate
from services.drafter.drafting import Drafting
from services.engine.engine import Engine
from services.engine.future import IdleJob
from services.engine.sequence import EngineSequence

_MIN_FREE_MEMORY = 0.25
"""Share of KV memory that must be free for drafting ahead."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A draft beyond the response, and the job that makes it."""

    drafting: Drafting
    job: IdleJob


class DraftAhead:
    """The draft of one sequence beyond the response that its client has.

    Between `start` and `stop` the sequence belongs to a background job, which yields to all other jobs of the
    engine.
    """

    def __init__(self, engine: Engine, sequence: EngineSequence) -> None:
        self._engine = engine
        self._sequence = sequence
        self._running: _Running | None = None

    def start(self, drafting: Drafting) -> None:
        """Start drafting in the background; do nothing if memory is scarce."""
        if self._has_memory():
            job = self._engine.run_when_idle(drafting.job())
            self._running = _Running(drafting, job)

    async def stop(self) -> Drafting | None:
        """End the job and return its draft, which stays at the end of the sequence; None if there is none."""
        running, self._running = self._running, None
        if running is None:
            return None
        await running.job.cancel()
        return running.drafting

    def _has_memory(self) -> bool:
        """Return True if no sequence waits for memory and enough is free that none is evicted soon."""
        load = self._engine.load()
        return not load.queued and load.kv_capacity - load.kv_used >= load.kv_capacity * _MIN_FREE_MEMORY


def confirms(sequence: EngineSequence, update: SequenceUpdate, start: int) -> bool:
    """Return True if the update leaves the sequence as it is, except for drafts at its end.

    Args:
        sequence: A sequence with tokens drafted ahead from `start` on.
        update: The client's next update.
        start: Length of the sequence that the client holds.
    """
    tokens, length = sequence.tokens, update.keep + len(update.tokens)
    return (
        sequence.decided <= update.keep <= start <= length <= len(tokens)
        and sequence.decided <= update.decided <= length
        and tokens.prefix_hash(update.keep) == update.prefix_hash
        and tuple(tokens.ids[update.keep : length]) == update.tokens
    )
