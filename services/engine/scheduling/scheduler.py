"""Continuous batching: choose the jobs of the next forward; pure, without threads or tensors."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flyserve.core.errors import FlyServeError, InternalError, InvalidRequest, NotReady
from flyserve.core.messages import StepTimes
from services.engine.base import ForwardInput, Job, KvSlot, Replan, Scores

PATIENCE_TURNS = 4
"""Turns for which a long input yields to short inputs of its own priority."""
STARVATION_TURNS = 64
"""Turns after which any input goes first, whatever its priority."""
IDLE_PRIORITY = -(1 << 40)
"""Priority of jobs that run only while no other job waits; below every priority that a request may have."""


@dataclass(slots=True, eq=False)
class ScheduledJob:
    """A submitted job, its state in the scheduler, and its result.

    Attributes:
        number: Order of submission.
        owner: Given by the caller, for whom the result is.
        next_input: Input that the job waits to have computed; None once the job has ended.
        is_parked: It takes part in no turn.
        waiting_since: Turn from which it has been waiting.
        queue_position: Order of waiting; lower has waited longer.
        times: Time in the queue and in forwards, and tokens computed for it, so far.
    """

    job: Job[Any]
    priority: int
    number: int
    submitted_ns: int
    owner: Any = None
    is_parked: bool = False
    waiting_since: int = 0
    queue_position: int = 0
    next_input: ForwardInput | None = None
    result: Any = None
    error: BaseException | None = None
    times: StepTimes = field(default_factory=StepTimes)
    _has_run: bool = False

    def record_forward(self, started_ns: int, forward_ns: int, batch_size: int, batch_tokens: int) -> None:
        """Record a forward that computed `next_input`, with the number of its sequences and token rows."""
        times, item = self.times, self.next_input
        assert item is not None
        queue_ns = times.queue_ns if self._has_run else started_ns - self.submitted_ns
        self._has_run = True
        self.times = StepTimes(
            queue_ns=queue_ns,
            forward_ns=times.forward_ns + forward_ns,
            batch_size=max(times.batch_size, batch_size),
            batch_tokens=max(times.batch_tokens, batch_tokens),
            prefill_tokens=times.prefill_tokens + item.num_prefill,
            reused_tokens=times.reused_tokens + item.num_reused,
        )


def forward_inputs(jobs: Iterable[ScheduledJob]) -> list[ForwardInput]:
    """Return the inputs of the jobs that have not ended."""
    return [scheduled.next_input for scheduled in jobs if scheduled.next_input is not None]


class Scheduler:
    """Advances jobs together, one forward per turn.

    A turn is `next_batch`, a forward of the jobs' inputs, then `complete` or `fail`. Jobs that have ended are
    collected with `take_finished`. A parked job takes part in no turn until it is resumed.

    A forward is filled in this order, within its budget of token rows: one overdue job; then by priority,
    short inputs before long ones, the longest waiting first. Chunks of a prefill are at most half a budget
    (`EngineCore`), so even if one is overdue in every turn, the other half is left to verifications: one that
    arrives during long prefills waits only for the running forward. Every waiting job becomes overdue, so
    constant load of a higher priority delays the others, by at most `STARVATION_TURNS` and one turn for each
    job that is overdue too, but never starves them. Only idle jobs are never overdue.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._jobs: dict[KvSlot, ScheduledJob] = {}
        self._finished: list[ScheduledJob] = []
        self._numbers = itertools.count()
        self._positions = itertools.count()
        self._turn = 0

    def __len__(self) -> int:
        return len(self.pending())

    def submit(self, job: Job[Any], priority: int = 0, now_ns: int = 0, owner: object = None) -> ScheduledJob:
        """Start a job; higher priorities go first."""
        scheduled = ScheduledJob(job, priority, next(self._numbers), submitted_ns=now_ns, owner=owner)
        self._advance(scheduled, partial(next, job))
        return scheduled

    def cancel(self, scheduled: ScheduledJob) -> None:
        """End a job between two turns; does nothing if it has ended."""
        if scheduled.next_input is not None:
            self._remove(scheduled)
            scheduled.job.close()

    def clear(self) -> list[ScheduledJob]:
        """Remove all jobs and return them; `cancel` ends each."""
        jobs, self._jobs = [*self._jobs.values()], {}
        return jobs

    def park(self, slot: KvSlot) -> ScheduledJob | None:
        """Exclude the job that waits with an input for `slot` from further turns; return it, if any."""
        scheduled = self.job_of(slot)
        if scheduled is not None:
            scheduled.is_parked = True
        return scheduled

    def resume(self, slot: KvSlot) -> ScheduledJob | None:
        """Include the parked job of `slot` again, with a new input; return it, if there is one."""
        scheduled = self._jobs.get(slot)
        if scheduled is None or not scheduled.is_parked:
            return None
        scheduled.is_parked = False
        self.replan(scheduled)
        return scheduled

    def hold(self, scheduled: ScheduledJob) -> None:
        """Exclude a waiting job from further turns, with its input."""
        scheduled.is_parked = True

    def release(self, scheduled: ScheduledJob) -> bool:
        """Include a held job again, with the same input; return False if it has ended."""
        was_held, scheduled.is_parked = scheduled.is_parked, False
        return was_held and scheduled.next_input is not None

    def replan(self, scheduled: ScheduledJob) -> None:
        """Replace the input of a waiting job, because the KV of its sequence has changed."""
        since, position = scheduled.waiting_since, scheduled.queue_position
        self._throw(scheduled, Replan())
        scheduled.waiting_since, scheduled.queue_position = since, position

    def throw(self, slot: KvSlot, error: Exception) -> None:
        """Raise `error` inside the job that waits with an input for `slot`, if there is one."""
        if (scheduled := self._jobs.get(slot)) is not None:
            scheduled.is_parked = False
            self._throw(scheduled, error)

    def job_of(self, slot: KvSlot) -> ScheduledJob | None:
        """Return the job that waits with an input for `slot` and is not parked, if there is one."""
        scheduled = self._jobs.get(slot)
        return None if scheduled is None or scheduled.is_parked else scheduled

    def pending(self) -> Collection[ScheduledJob]:
        """Return the jobs that wait for a forward."""
        return [scheduled for scheduled in self._jobs.values() if not scheduled.is_parked]

    def waiting(self) -> list[ForwardInput]:
        """Return the inputs that wait for the next forward, without those of idle jobs."""
        return forward_inputs(job for job in self.pending() if job.priority != IDLE_PRIORITY)

    def next_batch(self, admit: Callable[[ForwardInput], bool] = lambda item: True) -> list[ScheduledJob]:
        """Return the jobs of the next forward, within the token budget; at least one if any is admitted.

        `admit` reserves KV memory for an input; it returns False if the input must wait. If it raises, no
        turn takes place.
        """
        batch, pending = _Batch(self._max_batch_tokens, admit), self.pending()
        for scheduled in self._overdue(pending):
            if batch.add(scheduled):
                break
        for scheduled in sorted(pending, key=self._rank):
            if batch.free_rows <= 0 or not batch.can_share(scheduled):
                break
            batch.add(scheduled)
        self._turn += 1
        return batch.jobs

    def complete(
        self,
        batch: Sequence[ScheduledJob],
        scores: Sequence[Scores],
        started_ns: int = 0,
        forward_ns: int = 0,
    ) -> None:
        """Send each job of a forward its scores; raise an error that they report inside the job."""
        batch_tokens = sum(len(item.tokens) for item in forward_inputs(batch))
        for scheduled, score in zip(batch, scores, strict=True):
            scheduled.record_forward(started_ns, forward_ns, len(batch), batch_tokens)
            if score.error:
                self._throw(scheduled, _error_of(score))
            else:
                self._advance(scheduled, partial(scheduled.job.send, score))

    def fail(self, scheduled: ScheduledJob, error: Exception) -> None:
        """Raise `error` inside the job of a failed forward."""
        self._throw(scheduled, error)

    def take_finished(self) -> list[ScheduledJob]:
        """Return the jobs that have ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def _rank(self, scheduled: ScheduledJob) -> tuple[int, bool, int]:
        """Return the sort key of a turn: priority, short inputs before long ones, order of waiting."""
        return -scheduled.priority, self._is_long(scheduled), scheduled.queue_position

    def _is_long(self, scheduled: ScheduledJob) -> bool:
        item = scheduled.next_input
        return item is not None and len(item.tokens) * 8 > self._max_batch_tokens

    def _overdue(self, pending: Collection[ScheduledJob]) -> list[ScheduledJob]:
        """Return the jobs that have waited too long, the longest first."""
        highest = max((scheduled.priority for scheduled in pending), default=0)
        overdue = (job for job in pending if self._is_overdue(job, highest))
        return sorted(overdue, key=lambda job: job.queue_position)

    def _is_overdue(self, scheduled: ScheduledJob, highest: int) -> bool:
        """Check that a job has waited too long: a long input of the highest priority, `PATIENCE_TURNS`."""
        waited = self._turn + 1 - scheduled.waiting_since
        if scheduled.priority == IDLE_PRIORITY:
            return False
        is_passed = scheduled.priority == highest and self._is_long(scheduled) and waited >= PATIENCE_TURNS
        return is_passed or waited >= STARVATION_TURNS

    def _remove(self, scheduled: ScheduledJob) -> None:
        """Remove a job that has ended."""
        item, scheduled.next_input = scheduled.next_input, None
        if item is not None and self._jobs.get(item.slot) is scheduled:
            del self._jobs[item.slot]

    def _throw(self, scheduled: ScheduledJob, error: Exception) -> None:
        self._advance(scheduled, partial(scheduled.job.throw, error))

    def _advance(self, scheduled: ScheduledJob, resume: Callable[[], ForwardInput]) -> None:
        scheduled.waiting_since, scheduled.queue_position = self._turn, next(self._positions)
        try:
            item = scheduled.next_input = resume()
        except StopIteration as stop:
            scheduled.result = stop.value
        except BaseException as error:  # any failure of a job concerns that job alone
            scheduled.error = error
        else:
            assert self._jobs.setdefault(item.slot, scheduled) is scheduled, "a sequence has two jobs"
            return
        self._remove(scheduled)
        self._finished.append(scheduled)


def _error_of(scores: Scores) -> FlyServeError:
    """Return the error that scores report: of a field of the sequence, of the replica, or of the model."""
    if scores.field:
        return InvalidRequest.of(scores.field, scores.error)
    return NotReady(scores.error) if scores.is_lost else InternalError(scores.error)


class _Batch:
    """The jobs of a forward, while it is filled.

    Attributes:
        free_rows: Token rows left of the budget.
    """

    def __init__(self, max_tokens: int, admit: Callable[[ForwardInput], bool]) -> None:
        self.jobs: list[ScheduledJob] = []
        self.free_rows = max_tokens
        self._admit = admit

    def can_share(self, scheduled: ScheduledJob) -> bool:
        """Check that a job may join: idle jobs share forwards with idle jobs only."""
        return not self.jobs or (scheduled.priority == IDLE_PRIORITY) == (
            self.jobs[0].priority == IDLE_PRIORITY
        )

    def add(self, scheduled: ScheduledJob) -> bool:
        """Add a job if its input fits or is the only one, and is admitted; the first may be offered again."""
        item = scheduled.next_input
        if item is None or scheduled in self.jobs[:1] or (self.jobs and len(item.tokens) > self.free_rows):
            return False
        if not self._admit(item):
            return False
        self.jobs.append(scheduled)
        self.free_rows -= len(item.tokens)
        return True
