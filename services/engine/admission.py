"""Admit sequences to places and KV memory, while there is room for the growth that is expected of all."""

from collections.abc import Callable
from dataclasses import dataclass

from fly.messages import Open
from services.engine.base import KvSlot
from services.engine.future import EngineFuture
from services.engine.memory.kv_cache_manager import KvCacheManager
from services.engine.memory.slot_allocator import GRAIN
from services.engine.scheduling.admission_queue import AdmissionQueue, GrowthEstimate
from services.engine.sequence import EngineSequence


@dataclass(slots=True, eq=False)
class Applicant:
    """A new sequence that waits for a place and memory, or a preempted one that waits for memory.

    Attributes:
        sequence: None for a new one, until it is admitted.
        future: Result of the open of a new one.
    """

    opening: Open
    sequence: EngineSequence | None = None
    future: EngineFuture | None = None


class Admission:
    """The queue of sequences that wait for a place or for memory.

    A sequence is admitted if the memory in use, the expected growth of the admitted sequences and its own
    expected length fit into memory together. One that would be alone is always admitted.

    Attributes:
        num_opens: Number of new sequences that wait.
    """

    def __init__(
        self,
        kv: KvCacheManager[EngineSequence],
        kv_capacity: int,
        context_length: int,
        make_sequence: Callable[[Open, KvSlot], EngineSequence],
    ) -> None:
        self._kv = kv
        self._kv_capacity = kv_capacity
        self._context_length = context_length
        self._make_sequence = make_sequence
        self._growth = GrowthEstimate()
        self._queue = AdmissionQueue[Applicant]()
        self._committed: int | None = None
        self.num_opens = 0

    @property
    def num_preempted(self) -> int:
        """Number of preempted sequences that wait."""
        return len(self._queue) - self.num_opens

    def __len__(self) -> int:
        return len(self._queue)

    def add_open(self, opening: Open, future: EngineFuture) -> None:
        """Queue a new sequence."""
        self._queue.add(Applicant(opening, future=future), opening.priority)
        self.num_opens += 1

    def add_preempted(self, sequence: EngineSequence) -> None:
        """Queue an open sequence that needs memory."""
        applicant = Applicant(sequence.opening, sequence)
        self._queue.add(applicant, sequence.priority, is_preempted=True)

    def remove_open(self, future: EngineFuture) -> bool:
        """Remove a new sequence; return False if it does not wait."""
        found = [applicant for applicant in self._queue.items() if applicant.future is future]
        for applicant in found:
            self._queue.remove(applicant)
        self.num_opens -= len(found)
        return bool(found)

    def remove(self, sequence: EngineSequence) -> None:
        """Remove a preempted sequence; do nothing if it does not wait."""
        for applicant in self._queue.items():
            if applicant.sequence is sequence:
                self._queue.remove(applicant)

    def clear(self) -> list[EngineFuture]:
        """Remove all; return the futures of the new sequences."""
        waiting, self._queue, self.num_opens = self._queue.items(), AdmissionQueue[Applicant](), 0
        return [applicant.future for applicant in waiting if applicant.future is not None]

    def record_closed(self, sequence: EngineSequence) -> None:
        """Learn from the length of a closed sequence."""
        self._growth.record(sequence.opening, len(sequence))

    def admit(self, has_changed: bool = True) -> list[Applicant]:
        """Admit sequences in the queue's order; return them, with memory for their present length.

        `has_changed` is False if there were only opens since the last call; that is cheaper.
        """
        admitted: list[Applicant] = []

        def try_admit(applicant: Applicant) -> bool:
            if not self._try_admit(applicant):
                return False
            admitted.append(applicant)
            self.num_opens -= applicant.future is not None
            return True

        if has_changed:
            self._committed = None
        if len(self._queue):
            self._queue.admit(try_admit)
        return admitted

    def _try_admit(self, applicant: Applicant) -> bool:
        opening, sequence = applicant.opening, applicant.sequence
        length = max(1, opening.prompt_length) if sequence is None else len(sequence)
        if self._committed is None:
            self._committed = self._commitments()
        expected = self._expected_length(opening, length)
        needed = self._committed + expected
        if sequence is not None:
            # NOTE: so that each sequence can grow before one of them is preempted again.
            needed += GRAIN * (self._kv.num_admitted + 1)
        if needed > self._kv_capacity and self._kv.num_admitted > 0:
            return False
        if sequence is None:
            applicant.sequence = self._kv.admit(length, lambda slot: self._make_sequence(opening, slot))
            is_admitted = applicant.sequence is not None
        else:
            is_admitted = self._kv.readmit(sequence.slot, length)
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
        return -(-expected // GRAIN) * GRAIN
