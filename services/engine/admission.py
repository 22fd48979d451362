"""Admit sequences to places and KV memory, while there is room for the growth that is expected of all."""

from flyserve.core.messages import Open
from services.engine.base import NO_SLOT
from services.engine.future import EngineFuture
from services.engine.memory.kv_cache_manager import KvCacheManager
from services.engine.memory.slot_allocator import GRAIN
from services.engine.scheduling.admission_queue import AdmissionQueue, GrowthEstimate
from services.engine.sequence import EngineSequence


class Admission:
    """The queue of sequences that wait for a place or for memory.

    A sequence is admitted if the memory in use, the expected growth of the admitted sequences and its own
    expected length fit into memory together. One that would be alone is always admitted.

    Attributes:
        num_opens: Number of new sequences that wait.
    """

    def __init__(
        self,
        kv: KvCacheManager,
        kv_capacity: int,
        context_length: int,
    ) -> None:
        self._kv = kv
        self._kv_capacity = kv_capacity
        self._context_length = context_length
        self._growth = GrowthEstimate()
        self._queue = AdmissionQueue[EngineSequence]()
        self._committed: int | None = None
        self.num_opens = 0

    @property
    def num_preempted(self) -> int:
        """Number of preempted sequences that wait."""
        return len(self._queue) - self.num_opens

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, sequence: EngineSequence) -> None:
        """Queue a new sequence, which has no slot, or an open one that needs memory."""
        is_new = sequence.slot == NO_SLOT
        self._queue.add(sequence, sequence.priority, is_preempted=not is_new)
        self.num_opens += is_new

    def remove(self, sequence: EngineSequence) -> None:
        """Remove a sequence; do nothing if it does not wait."""
        if self._queue.remove(sequence):
            self.num_opens -= sequence.slot == NO_SLOT

    def clear(self) -> list[EngineFuture]:
        """Remove all; return the futures of the new sequences."""
        waiting, self._queue, self.num_opens = self._queue.items(), AdmissionQueue[EngineSequence](), 0
        return [sequence.opened for sequence in waiting if sequence.opened is not None]

    def record_closed(self, sequence: EngineSequence) -> None:
        """Learn from the length of a closed sequence."""
        self._growth.record(sequence.opening, len(sequence))

    def admit(self, has_changed: bool = True) -> list[EngineSequence]:
        """Admit sequences in the queue's order; return them, with memory for their present length.

        `has_changed` is False if there were only opens since the last call; that is cheaper.
        """
        admitted: list[EngineSequence] = []

        def try_admit(sequence: EngineSequence) -> bool:
            if not self._try_admit(sequence):
                return False
            admitted.append(sequence)
            self.num_opens -= sequence.opened is not None
            return True

        if has_changed:
            self._committed = None
        if len(self._queue):
            self._queue.admit(try_admit)
        return admitted

    def _try_admit(self, sequence: EngineSequence) -> bool:
        opening, is_new = sequence.opening, sequence.slot == NO_SLOT
        length = max(1, opening.prompt_length) if is_new else len(sequence)
        if self._committed is None:
            self._committed = self._commitments()
        expected = self._expected_length(opening, length)
        needed = self._committed + expected
        if not is_new:
            # NOTE: so that each sequence can grow before one of them is preempted again.
            needed += GRAIN * (self._kv.num_admitted + 1)
        if needed > self._kv_capacity and self._kv.num_admitted > 0:
            return False
        is_admitted = self._kv.admit(sequence, length)
        self._committed += expected * is_admitted
        return is_admitted

    def _commitments(self) -> int:
        """Return the memory in use and the growth that is expected of the admitted sequences."""
        growth = (
            self._expected_length(sequence.opening, len(sequence)) - self._kv.reserved(sequence.slot)
            for sequence in self._kv.admitted()
        )
        return self._kv.num_used + sum(max(0, each) for each in growth)

    def _expected_length(self, opening: Open, length: int) -> int:
        """Return the expected final length, as memory reserves it."""
        expected = min(self._growth.expected_length(opening, length), self._context_length)
        return self._kv.whole(-(-expected // GRAIN) * GRAIN)
