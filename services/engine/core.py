"""The engine's state: open sequences, jobs, memory; synchronous, owned by one thread or task."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from fly.clock import Clock
from fly.errors import NotReady, Overloaded
from fly.messages import Load, Open
from fly.sequence import StaleReason, StaleState
from services.engine.base import Job, Runner, Scores
from services.engine.gathering import Gathering
from services.engine.memory.residency import Residency
from services.engine.promise import Promise
from services.engine.scheduler import BACKGROUND, Scheduler
from services.engine.sequence import EngineSequence
from services.engine.ticket import Ticket, works

RETRY_AFTER_S = 1.0


class EngineCore:
    """What both kinds of engine share: admission, batching, eviction, and the answers to give.

    A driver repeats: call the commands that came in, while `wait_s` says so; `begin`; forward the tickets;
    `finish` or `fail`; deliver what `take_answers` holds.
    """

    def __init__(self, runner: Runner, max_batch_tokens: int, max_queued: int, clock: Clock) -> None:
        self._runner = runner
        self._max_queued = max_queued
        self._chunk_tokens = max(1, max_batch_tokens // 2)
        self._residency = Residency(runner)
        self._scheduler = Scheduler(max_batch_tokens)
        self._gathering = Gathering(clock, max_batch_tokens)
        self._promises: dict[int, Promise] = {}
        self._tickets: dict[Promise, Ticket] = {}
        self._waiting: deque[tuple[Open, Promise]] = deque()
        self._answers: list[Promise] = []
        self._prefill_tokens = 0
        self._reused_tokens = 0

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens, by the model and by memory."""
        capacity = self._runner.kv_capacity
        return min(self._runner.info.context_length or capacity, capacity)

    @property
    def has_work(self) -> bool:
        return len(self._scheduler) > 0

    def load(self) -> Load:
        return Load(
            sequences=len(self._residency),
            queued=len(self._waiting),
            kv_used=self._runner.kv_used - self._runner.kv_cached,
            kv_cached=self._runner.kv_cached,
            kv_capacity=self._runner.kv_capacity,
            prefill_tokens=self._prefill_tokens,
            reused_tokens=self._reused_tokens,
        )

    def open(self, opening: Open, promise: Promise) -> None:
        """Admits a sequence, or lets it wait, or rejects it."""
        if not self._waiting and self._try_open(opening, promise):
            return
        if len(self._waiting) < self._max_queued:
            self._waiting.append((opening, promise))
            return
        load = self.load()
        room = f"{load.kv_used} of {load.kv_capacity} KV positions are taken"
        message = f"{load.sequences} sequences are open and {load.queued} wait; {room}"
        self._answer(promise, error=Overloaded(message, RETRY_AFTER_S))

    def abandon(self, promise: Promise) -> None:
        """Nobody awaits this sequence any more."""
        self._waiting = deque(entry for entry in self._waiting if entry[1] is not promise)
        if isinstance(promise.result, EngineSequence):
            self.close(promise.result)
        self._admit_waiting()

    def close(self, sequence: EngineSequence) -> None:
        """Frees a sequence; a job that still works for it ends."""
        self._scheduler.throw(sequence.slot, NotReady("the sequence has been closed"))
        self._residency.release(sequence)
        self._gathering.left(sequence.slot)
        self._collect()
        self._admit_waiting()

    def submit(self, job: Job[Any], priority: int, now_ns: int, promise: Promise) -> None:
        ticket = self._scheduler.submit(job, priority, now_ns)
        self._promises[ticket.number] = promise
        self._tickets[promise] = ticket
        if ticket.work is not None and priority != BACKGROUND:
            self._gathering.came(ticket.work.slot, now_ns / 1e9)
        self._collect()

    def cancel(self, promise: Promise) -> None:
        """Ends the job that the promise stands for."""
        ticket = self._tickets.pop(promise, None)
        if ticket is not None:
            del self._promises[ticket.number]
            self._scheduler.cancel(ticket)

    def wait_s(self) -> float:
        """Seconds that the next forward should wait for more to come; 0 where it should begin."""
        return self._gathering.wait_s(self._scheduler.waiting())

    def begin(self) -> list[Ticket]:
        """The tickets of the next forward, with room in memory for all; empty when nothing is to be done."""
        while self.has_work:
            busy = self._scheduler.pending_slots()
            batch = self._scheduler.next_batch(lambda work: self._residency.make_room(work, busy))  # noqa: B023
            if batch:
                self._admit_waiting()  # an eviction may have left more room than was asked for
                return batch
            self._preempt()
        return []

    def finish(
        self, batch: Sequence[Ticket], scores: Sequence[Scores], started_ns: int, forward_ns: int
    ) -> None:
        done = works(batch)
        for work in done:
            self._prefill_tokens += work.num_unanswered
            self._reused_tokens += work.num_reused
        self._gathering.saw_forward(sum(len(work.tokens) for work in done), forward_ns / 1e9)
        self._scheduler.complete(batch, scores, started_ns, forward_ns)
        for ticket, work in zip(batch, done, strict=True):
            if ticket.work is None and ticket.priority != BACKGROUND:
                self._gathering.answered(work.slot, len(work.tokens))
        self._collect()

    def fail(self, batch: Sequence[Ticket], error: Exception) -> None:
        """Ends the jobs of a forward that raised."""
        self._scheduler.fail(batch, error)
        self._collect()

    def abort(self) -> None:
        """Ends everything, and frees what is cached: the engine stops."""
        for promise, ticket in self._tickets.items():
            self._scheduler.cancel(ticket)
            self._answer(promise, error=NotReady("the engine stops"))
        for _, promise in self._waiting:
            self._answer(promise, error=NotReady("the engine stops"))
        self._tickets.clear()
        self._promises.clear()
        self._waiting.clear()
        self._residency.drop_cached()

    def keep(self, promise: Promise) -> None:
        """Keeps a promise that asks for nothing but an answer."""
        self._answer(promise)

    def take_answers(self) -> list[Promise]:
        """The promises that have been kept since the last call."""
        answers, self._answers = self._answers, []
        return answers

    def _preempt(self) -> None:
        """Memory is full of sequences at work: the least recent gives way to the first in line."""
        first = self._scheduler.first()
        assert first.work is not None
        victim = self._residency.least_recent({first.work.slot})
        if victim is None:
            message = (
                f"the sequence needs {first.work.end} KV positions, of {self._runner.kv_capacity} in all"
            )
            self._scheduler.throw(first.work.slot, Overloaded(message, RETRY_AFTER_S))
        else:
            self._residency.evict(victim)
            self._scheduler.throw(victim, StaleState(StaleReason.EVICTED))
        self._collect()

    def _admit_waiting(self) -> None:
        while self._waiting and self._try_open(*self._waiting[0]):
            self._waiting.popleft()

    def _try_open(self, opening: Open, promise: Promise) -> bool:
        info = self._runner.info
        sequence = self._residency.admit(
            max(1, opening.prompt_length),
            lambda slot: EngineSequence(
                opening, slot, info.vocab_size, self.context_length, self._chunk_tokens, self._residency
            ),
        )
        if sequence is None:
            return False
        self._answer(promise, sequence)
        return True

    def _collect(self) -> None:
        """Answers for the jobs that are over."""
        for ticket in self._scheduler.take_finished():
            promise = self._promises.pop(ticket.number, None)
            if promise is not None:
                self._tickets.pop(promise, None)
                self._answer(promise, (ticket.result, ticket.times), ticket.error)

    def _answer(self, promise: Promise, result: Any = None, error: BaseException | None = None) -> None:
        promise.result, promise.error = result, error
        self._answers.append(promise)
