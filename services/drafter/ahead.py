"""Drafting ahead: after an answer the draft goes on as if all of it were accepted, while the engine idles."""

from dataclasses import dataclass

from fly.sequence import SequenceUpdate
from services.drafter.drafting import Drafting
from services.engine.engine import Engine
from services.engine.future import IdleJob
from services.engine.sequence import EngineSequence

_SPARE_MEMORY = 0.25
"""Share of the engine's memory below which nothing is drafted ahead."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A draft beyond the answer, and the job that makes it."""

    drafting: Drafting
    job: IdleJob


class DraftAhead:
    """One sequence's draft beyond the answer that its client has.

    Between `start` and `stop` the sequence belongs to a job of the engine that gives way to all others.
    """

    def __init__(self, engine: Engine, sequence: EngineSequence) -> None:
        self._engine = engine
        self._sequence = sequence
        self._ahead: _Ahead | None = None

    def start(self, drafting: Drafting) -> None:
        """Begins; does nothing where memory is scarce."""
        if self._has_memory():
            job = self._engine.run_when_idle(drafting.job())
            self._ahead = _Ahead(drafting, job)

    async def stop(self) -> Drafting | None:
        """Ends the job; the sequence is free again, with what has been drafted ahead at its end."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        await ahead.job.cancel()
        return ahead.drafting

    def _has_memory(self) -> bool:
        """Nobody waits for memory, and nobody is likely to be evicted for a draft that may be in vain."""
        load = self._engine.load()
        return not load.queued and load.kv_capacity - load.kv_used >= load.kv_capacity * _SPARE_MEMORY


def confirms(sequence: EngineSequence, update: SequenceUpdate, start: int) -> bool:
    """Whether an update makes of a sequence what it is already, but for drafts at its end.

    Args:
        sequence: With tokens drafted ahead from `start` on.
        update: What the client says that it is.
        start: Length of what the client knows of the sequence.
    """
    known, length = sequence.tokens, update.keep + len(update.tokens)
    return (
        sequence.decided <= update.keep <= start <= length <= len(known)
        and sequence.decided <= update.decided <= length
        and known.prefix_hash(update.keep) == update.prefix_hash
        and tuple(known.ids[update.keep : length]) == update.tokens
    )
