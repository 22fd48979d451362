"""The engine's state: open sequences, jobs and memory. Synchronous; owned by one thread or task."""

import logging
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future
from functools import partial
from typing import Any

from flyserve.core.clock import Clock
from flyserve.core.errors import FlyServeError, InternalError, NotReady, Overloaded
from flyserve.core.messages import Load, Open, Opened, Queued
from services.engine.admission import Admission
from services.engine.base import NO_SLOT, ForwardInput, Job, KvSlot, Scorer, Scores
from services.engine.future import Delivery, EngineFuture
from services.engine.memory.kv_cache_manager import KvCacheManager
from services.engine.scheduling.batch_window import BatchWindow
from services.engine.scheduling.scheduler import IDLE_PRIORITY, ScheduledJob, Scheduler, forward_inputs
from services.engine.scheduling.shared_prefills import share_prefills
from services.engine.sequence import EngineSequence

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 1.0


class _KvShortage(Exception):
    """No memory is free for the next input of a slot, its argument."""


class EngineCore:
    """Admission, batching, preemption and results, shared by all engines.

    An engine repeats: call the commands that have arrived, for as long as `wait_s` is positive; `next_batch`;
    compute the forward; `complete` or `fail`, which may return smaller forwards; deliver what
    `take_deliveries` returns.
    """

    def __init__(
        self,
        scorer: Scorer,
        max_batch_tokens: int,
        max_queued: int,
        clock: Clock,
        post: Callable[[Callable[[], None]], None] = lambda command: command(),
    ) -> None:
        """Prepare the state; `post` may be called by any thread, and lets the owner call a command."""
        self._scorer = scorer
        self._post = post
        self._max_queued = max_queued
        self._chunk_tokens = max(1, max_batch_tokens // 2)
        self._kv = KvCacheManager(scorer)
        self._admission = Admission(self._kv, scorer.kv_capacity, self.context_length)
        self._scheduler = Scheduler(max_batch_tokens)
        self._batch_window = BatchWindow(clock, max_batch_tokens)
        self._deliveries: list[Delivery] = []
        self._copies_wait = False
        self._prefill_tokens = 0
        self._reused_tokens = 0
        self._preemptions = 0

    @property
    def context_length(self) -> int:
        """Longest sequence in tokens that the model and memory allow."""
        capacity = self._scorer.kv_capacity
        return min(self._scorer.info.context_length or capacity, capacity)

    @property
    def has_work(self) -> bool:
        return len(self._scheduler) > 0

    def load(self) -> Load:
        return Load(
            sequences=len(self._kv) - self._admission.num_preempted,
            queued=len(self._admission),
            kv_used=self._scorer.kv_used - self._scorer.kv_cached,
            kv_cached=self._scorer.kv_cached,
            kv_capacity=self._scorer.kv_capacity,
            prefill_tokens=self._prefill_tokens,
            reused_tokens=self._reused_tokens,
            preemptions=self._preemptions,
        )

    def open(self, opening: Open, future: EngineFuture, queue: bool = True) -> None:
        """Admit a sequence, or queue it; reject it with `Overloaded` if the queue is full or not allowed."""
        sequence = self._make_sequence(opening)
        sequence.opened, future.work = future, sequence
        self._admission.add(sequence)
        self._admit(has_changed=False)
        if future.result is not None:
            return
        if self._admission.num_opens <= (self._max_queued if queue else 0):
            future.is_queued = True
            self._notify(future, Queued())
            return
        self._admission.remove(sequence)
        load = self.load()
        message = (
            f"{load.sequences} sequences are open and {load.queued} are queued;"
            f" {load.kv_used} of {load.kv_capacity} KV positions are in use"
        )
        self.resolve(future, error=Overloaded(message, RETRY_AFTER_S))

    def close(self, sequence: EngineSequence) -> None:
        """Free a sequence and end its job, if it has one; do nothing if it has been closed."""
        slot = sequence.slot
        if slot == NO_SLOT:
            return
        self._scheduler.throw(slot, NotReady("the sequence has been closed"))
        self._admission.remove(sequence)
        if self._kv.release(sequence):
            self._admission.record_closed(sequence)
        self._batch_window.forget(slot)
        self._collect()
        self._admit()

    def submit(self, job: Job[Any], priority: int, now_ns: int, future: EngineFuture) -> None:
        scheduled = future.work = self._scheduler.submit(job, priority, now_ns, future)
        if scheduled.next_input is not None and priority != IDLE_PRIORITY:
            self._batch_window.record_arrival(scheduled.next_input.slot, now_ns / 1e9)
        self._await_memory(scheduled)
        self._collect()

    def cancel(self, future: EngineFuture) -> None:
        """End a job or an `open` that is no longer awaited; close the sequence that has been opened."""
        work = future.work
        if isinstance(work, EngineSequence):
            self._admission.remove(work)
            self.close(work)
        elif isinstance(work, ScheduledJob) and work.next_input is not None:
            self._admission.remove(self._kv.sequence(work.next_input.slot))
            self._scheduler.cancel(work)
        self._admit()

    def fail_command(self, future: EngineFuture | None, error: Exception) -> None:
        """End the open or the job that a failed command was for with an error; all others continue."""
        logger.error("a command of the engine failed, and only its request ends", exc_info=error)
        if future is None or future.result is not None:
            return
        if isinstance(future.work, EngineSequence):
            self._admission.remove(future.work)
        elif isinstance(future.work, ScheduledJob):
            self._scheduler.cancel(future.work)
        if not isinstance(error, FlyServeError):
            error = InternalError(f"the engine failed on this request: {type(error).__name__}")
        self.resolve(future, error=error)

    def wait_s(self) -> float:
        """Return the seconds for which the next forward should wait for more jobs; 0 if it should begin."""
        return self._batch_window.wait_s(self._scheduler.waiting())

    def next_batch(self) -> list[ScheduledJob]:
        """Return the jobs of the next forward, with memory reserved for all; empty if no job can run."""
        self._admit()
        if self._copies_wait:
            # NOTE: not before: sequences that came meanwhile would take all copies, again and again.
            self._kv.allow_copies()
        while self.has_work:
            try:
                batch = self._scheduler.next_batch(partial(self._reserve, self._share_prefills()))
            except _KvShortage as shortage:
                self._make_room(self._kv.sequence(shortage.args[0]))
            else:
                self._admit()  # a preemption may have freed more memory than was needed
                if not self._copies_wait:
                    self._kv.allow_copies()
                return batch
        return []

    def complete(
        self, batch: Sequence[ScheduledJob], scores: Sequence[Scores], started_ns: int, forward_ns: int
    ) -> None:
        """Send the jobs of a forward their scores; those with late ones are computed again later."""
        for scheduled, score in zip(batch, scores, strict=True):
            if score.late is not None:
                self._hold(scheduled, score.late)
        on_time = [pair for pair in zip(batch, scores, strict=True) if pair[1].late is None]
        batch, scores = [scheduled for scheduled, _ in on_time], [score for _, score in on_time]
        inputs = forward_inputs(batch)
        for item in inputs:
            self._prefill_tokens += item.num_prefill
            self._reused_tokens += item.num_reused
        self._batch_window.record_forward(sum(len(item.tokens) for item in inputs), forward_ns / 1e9)
        self._scheduler.complete(batch, scores, started_ns, forward_ns)
        if computed := {item.slot for item in inputs if not item.num_outputs}:
            self._report_prefills(computed)
        for scheduled, item in zip(batch, inputs, strict=True):
            if scheduled.next_input is None and scheduled.priority != IDLE_PRIORITY:
                self._batch_window.record_answer(item.slot, len(item.tokens))
        self._collect()

    def _report_prefills(self, computed: Set[KvSlot]) -> None:
        """Report to the jobs that need several forwards that one has ended; others may compute theirs."""
        for job in self._scheduler.pending():
            item = job.next_input
            if item is None or job.priority == IDLE_PRIORITY:
                continue
            if item.slot in computed or not item.num_outputs:
                self._notify(job.owner, Opened())

    def fail(self, batch: Sequence[ScheduledJob], error: Exception) -> list[Sequence[ScheduledJob]]:
        """Return the parts of a failed forward that must be computed next, in place of the whole.

        The forward of a single job is not repeated: `InternalError` is raised in the job. One job of n that
        always fails costs two more forwards for each halving of n; the others are in one that succeeds.
        """
        if middle := len(batch) // 2:
            for scheduled in batch:
                self._start_over(scheduled)
            return [batch[:middle], batch[middle:]]
        logger.error("the forward of one sequence failed, and only its job ends", exc_info=error)
        failure = InternalError(f"the model failed on this sequence: {type(error).__name__}")
        failure.__cause__ = error
        self._scheduler.fail(batch[0], failure)
        self._collect()
        return []

    def abort(self) -> None:
        """End all jobs and queued opens with `NotReady`, and free cached memory: the engine stops."""
        jobs = self._scheduler.clear()
        # NOTE: first, because a job may fail while it ends, and nobody must wait for it then.
        for future in (*(scheduled.owner for scheduled in jobs), *self._admission.clear()):
            self.resolve(future, error=NotReady("the engine stops"))
        for scheduled in jobs:
            self._scheduler.cancel(scheduled)
        self._kv.drop_cached()

    def resolve(self, future: EngineFuture, result: Any = None, error: BaseException | None = None) -> None:
        """Set the result or the error of a future, to be delivered after `take_deliveries`."""
        future.result, future.error = result, error
        self._deliveries.append((future.loop, future.deliver))

    def _notify(self, future: EngineFuture, notice: Queued | Opened) -> None:
        self._deliveries.append((future.loop, partial(future.notify, notice)))

    def take_deliveries(self) -> list[Delivery]:
        """Return the futures that were resolved since the last call, and the notices."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def _share_prefills(self) -> Set[KvSlot]:
        """Let jobs reuse what others have computed; return the slots that wait for it, or for its copy."""
        shared = share_prefills(self._scheduler.pending(), self._kv.num_reusable)
        self._copies_wait = False
        for job in sorted(shared.reusable, key=lambda job: (-job.priority, job.number)):
            if self._kv.may_copy:
                self._scheduler.replan(job)
            elif job.next_input is not None:
                shared.held.add(job.next_input.slot)
                self._copies_wait = True
        return shared.held

    def _reserve(self, held: Set[KvSlot], item: ForwardInput) -> bool:
        if item.slot in held:
            return False
        if not self._kv.reserve(item):
            raise _KvShortage(item.slot)
        return True

    def _make_room(self, growing: EngineSequence) -> None:
        """Preempt a sequence, which may be the growing one; end the growing job if it is an idle one."""
        job, victim = self._scheduler.job_of(growing.slot), self._kv.next_victim()
        if (job is not None and job.priority == IDLE_PRIORITY) or self._kv.num_admitted == 1:
            message = f"no KV memory is free, of {self._scorer.kv_capacity} positions in total"
            self._scheduler.throw(growing.slot, Overloaded(message, RETRY_AFTER_S))
        else:
            self._kv.preempt(victim)
            self._preemptions += 1
            if (parked := self._park(victim)) is not None:
                self._notify(parked.owner, Queued())
        self._collect()

    def _park(self, sequence: EngineSequence) -> ScheduledJob | None:
        """Let the job of a sequence without memory wait until that is admitted again, if it has a job.

        A job that runs only when idle does not wait but ends.
        """
        job = self._scheduler.job_of(sequence.slot)
        if job is None:
            return None
        if job.priority == IDLE_PRIORITY:
            self._scheduler.throw(sequence.slot, Overloaded("the sequence was preempted", RETRY_AFTER_S))
            return None
        self._admission.add(sequence)
        return self._scheduler.park(sequence.slot)

    def _hold(self, scheduled: ScheduledJob, work: "Future[Any]") -> None:
        """Exclude a job from forwards until the work is done that its scores wait for."""
        self._scheduler.hold(scheduled)
        work.add_done_callback(lambda _: self._post(partial(self._release, scheduled)))

    def _release(self, scheduled: ScheduledJob) -> None:
        """Compute a held job again, unless it has ended; its sequence may have been preempted meanwhile."""
        if self._scheduler.release(scheduled):
            self._start_over(scheduled)
            self._await_memory(scheduled)
            self._collect()

    def _start_over(self, scheduled: ScheduledJob) -> None:
        """Plan a repeated forward from the start of the sequence, if its state has taken in the last row."""
        item = scheduled.next_input
        if self._scorer.info.plain_only and item is not None and item.start:
            self._kv.sequence(item.slot).forget_kv()
            self._scheduler.replan(scheduled)

    def _await_memory(self, scheduled: ScheduledJob) -> None:
        """Let a job that waits for a forward wait for memory first, if its sequence has none."""
        item = scheduled.next_input
        if item is not None and not self._kv.has_memory(item.slot):
            self._park(self._kv.sequence(item.slot))
            self._admit()
            if not self._kv.has_memory(item.slot):
                self._notify(scheduled.owner, Queued())

    def _admit(self, has_changed: bool = True) -> None:
        for sequence in self._admission.admit(has_changed):
            if sequence.opened is not None:
                opened, sequence.opened = sequence.opened, None
                if opened.is_queued:
                    self._notify(opened, Opened())
                self.resolve(opened, sequence)
            elif (resumed := self._scheduler.resume(sequence.slot)) is not None:
                self._notify(resumed.owner, Opened())

    def _make_sequence(self, opening: Open) -> EngineSequence:
        return EngineSequence(
            opening=opening,
            slot=NO_SLOT,
            vocab_size=self._scorer.info.vocab_size,
            context_length=self.context_length,
            chunk_tokens=self._chunk_tokens,
            prefix_cache=None if self._scorer.info.plain_only else self._kv,
        )

    def _collect(self) -> None:
        """Resolve the futures of the jobs that have ended."""
        for scheduled in self._scheduler.take_finished():
            self.resolve(scheduled.owner, (scheduled.result, scheduled.times), scheduled.error)
