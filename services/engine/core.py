"""The engine's state: open sequences, jobs and memory. Synchronous; owned by one thread or task."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from fly.clock import Clock
from fly.errors import NotReady, Overloaded
from fly.messages import Load, Open
from fly.sequence import StaleReason, StaleState
from services.engine.base import Job, Runner, Scores
from services.engine.future import EngineFuture
from services.engine.memory.kv_cache_manager import KvCacheManager
from services.engine.scheduling.batch_window import BatchWindow
from services.engine.scheduling.scheduler import IDLE_PRIORITY, ScheduledJob, Scheduler, forward_inputs
from services.engine.sequence import EngineSequence

RETRY_AFTER_S = 1.0


class EngineCore:
    """Admission, batching, eviction and results, shared by all engines.

    An engine repeats: call the commands that have arrived, for as long as `wait_s` is positive; `next_batch`;
    compute the forward; `complete` or `fail`; deliver the futures of `take_resolved`.
    """

    def __init__(self, runner: Runner, max_batch_tokens: int, max_queued: int, clock: Clock) -> None:
        self._runner = runner
        self._max_queued = max_queued
        self._chunk_tokens = max(1, max_batch_tokens // 2)
        self._kv = KvCacheManager(runner)
        self._scheduler = Scheduler(max_batch_tokens)
        self._batch_window = BatchWindow(clock, max_batch_tokens)
        self._futures: dict[int, EngineFuture] = {}
        self._jobs: dict[EngineFuture, ScheduledJob] = {}
        self._queue: deque[tuple[Open, EngineFuture]] = deque()
        self._resolved: list[EngineFuture] = []
        self._prefill_tokens = 0
        self._reused_tokens = 0

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens that the model and memory allow."""
        capacity = self._runner.kv_capacity
        return min(self._runner.info.context_length or capacity, capacity)

    @property
    def has_work(self) -> bool:
        return len(self._scheduler) > 0

    def load(self) -> Load:
        return Load(
            sequences=len(self._kv),
            queued=len(self._queue),
            kv_used=self._runner.kv_used - self._runner.kv_cached,
            kv_cached=self._runner.kv_cached,
            kv_capacity=self._runner.kv_capacity,
            prefill_tokens=self._prefill_tokens,
            reused_tokens=self._reused_tokens,
        )

    def open(self, opening: Open, future: EngineFuture) -> None:
        """Admit a sequence, or queue it, or reject it with `Overloaded`."""
        if not self._queue and self._try_open(opening, future):
            return
        if len(self._queue) < self._max_queued:
            self._queue.append((opening, future))
            return
        load = self.load()
        message = (
            f"{load.sequences} sequences are open and {load.queued} are queued;"
            f" {load.kv_used} of {load.kv_capacity} KV positions are in use"
        )
        self.resolve(future, error=Overloaded(message, RETRY_AFTER_S))

    def cancel_open(self, future: EngineFuture) -> None:
        """Cancel an `open` that is no longer awaited; close its sequence if it was admitted."""
        self._queue = deque(entry for entry in self._queue if entry[1] is not future)
        if isinstance(future.result, EngineSequence):
            self.close(future.result)
        self._admit_queued()

    def close(self, sequence: EngineSequence) -> None:
        """Free a sequence and end its job, if it has one."""
        self._scheduler.throw(sequence.slot, NotReady("the sequence has been closed"))
        self._kv.release(sequence)
        self._batch_window.forget(sequence.slot)
        self._collect()
        self._admit_queued()

    def submit(self, job: Job[Any], priority: int, now_ns: int, future: EngineFuture) -> None:
        scheduled = self._scheduler.submit(job, priority, now_ns)
        self._futures[scheduled.job_id] = future
        self._jobs[future] = scheduled
        if scheduled.next_input is not None and priority != IDLE_PRIORITY:
            self._batch_window.record_arrival(scheduled.next_input.slot, now_ns / 1e9)
        self._collect()

    def cancel(self, future: EngineFuture) -> None:
        """End the job of the future; does nothing if it has ended."""
        scheduled = self._jobs.pop(future, None)
        if scheduled is not None:
            del self._futures[scheduled.job_id]
            self._scheduler.cancel(scheduled)

    def wait_s(self) -> float:
        """Return the seconds for which the next forward should wait for more jobs; 0 if it should begin."""
        return self._batch_window.wait_s(self._scheduler.waiting())

    def next_batch(self) -> list[ScheduledJob]:
        """Return the jobs of the next forward, with memory reserved for all; empty if no job waits."""
        while self.has_work:
            busy = self._scheduler.pending_slots()
            batch = self._scheduler.next_batch(lambda item: self._kv.reserve(item, busy))  # noqa: B023
            if batch:
                self._admit_queued()  # an eviction may have freed more memory than was needed
                return batch
            self._preempt()
        return []

    def complete(
        self, batch: Sequence[ScheduledJob], scores: Sequence[Scores], started_ns: int, forward_ns: int
    ) -> None:
        """Send the jobs of a forward their scores."""
        inputs = forward_inputs(batch)
        for item in inputs:
            self._prefill_tokens += item.num_prefill
            self._reused_tokens += item.num_reused
        self._batch_window.record_forward(sum(len(item.tokens) for item in inputs), forward_ns / 1e9)
        self._scheduler.complete(batch, scores, started_ns, forward_ns)
        for scheduled, item in zip(batch, inputs, strict=True):
            if scheduled.next_input is None and scheduled.priority != IDLE_PRIORITY:
                self._batch_window.record_answer(item.slot, len(item.tokens))
        self._collect()

    def fail(self, batch: Sequence[ScheduledJob], error: Exception) -> None:
        """Raise `error` in the jobs of a failed forward."""
        self._scheduler.fail(batch, error)
        self._collect()

    def abort(self) -> None:
        """End all jobs and queued opens with `NotReady`, and free cached memory: the engine stops."""
        for future, scheduled in self._jobs.items():
            self._scheduler.cancel(scheduled)
            self.resolve(future, error=NotReady("the engine stops"))
        for _, future in self._queue:
            self.resolve(future, error=NotReady("the engine stops"))
        self._jobs.clear()
        self._futures.clear()
        self._queue.clear()
        self._kv.drop_cached()

    def resolve(self, future: EngineFuture, result: Any = None, error: BaseException | None = None) -> None:
        """Set the result or the error of a future, to be delivered after `take_resolved`."""
        future.result, future.error = result, error
        self._resolved.append(future)

    def take_resolved(self) -> list[EngineFuture]:
        """Return the futures that were resolved since the last call."""
        resolved, self._resolved = self._resolved, []
        return resolved

    def _preempt(self) -> None:
        """Evict the least recently used sequence, although it has a job, for the first job in the queue."""
        first = self._scheduler.first()
        assert first.next_input is not None
        victim = self._kv.least_recently_used({first.next_input.slot})
        if victim is None:
            message = (
                f"the sequence needs {first.next_input.end} KV positions;"
                f" the engine has {self._runner.kv_capacity} in total"
            )
            self._scheduler.throw(first.next_input.slot, Overloaded(message, RETRY_AFTER_S))
        else:
            self._kv.evict(victim)
            self._scheduler.throw(victim, StaleState(StaleReason.EVICTED))
        self._collect()

    def _admit_queued(self) -> None:
        while self._queue and self._try_open(*self._queue[0]):
            self._queue.popleft()

    def _try_open(self, opening: Open, future: EngineFuture) -> bool:
        sequence = self._kv.admit(
            max(1, opening.prompt_length),
            lambda slot: EngineSequence(
                opening=opening,
                slot=slot,
                vocab_size=self._runner.info.vocab_size,
                context_length=self.context_length,
                chunk_tokens=self._chunk_tokens,
                prefix_cache=self._kv,
            ),
        )
        if sequence is None:
            return False
        self.resolve(future, sequence)
        return True

    def _collect(self) -> None:
        """Resolve the futures of the jobs that have ended."""
        for scheduled in self._scheduler.take_finished():
            future = self._futures.pop(scheduled.job_id, None)
            if future is not None:
                self._jobs.pop(future, None)
                self.resolve(future, (scheduled.result, scheduled.times), scheduled.error)
