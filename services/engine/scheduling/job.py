"""A submitted job with its place in the queue, its timings and its result."""

from collections.abc import Iterable
from typing import Any

from fly.messages import StepTimes
from services.engine.base import ForwardInput, Job


class ScheduledJob:
    """A submitted job, its state in the scheduler, and its result.

    Attributes:
        job: The job.
        priority: Higher priorities go first.
        job_id: Unique number.
        submitted_ns: Time of the submission.
        next_input: Input that the job waits to have computed; None once the job has ended.
        result: Return value of the job, once it has ended.
        error: Exception that the job raised.
        waiting_since: Turn from which it has been waiting.
        queue_position: Order of waiting; lower has waited longer.
        times: Time in the queue and in forwards, and tokens computed for it, so far.
    """

    __slots__ = (
        "_has_run",
        "error",
        "job",
        "job_id",
        "next_input",
        "priority",
        "queue_position",
        "result",
        "submitted_ns",
        "times",
        "waiting_since",
    )

    def __init__(self, job: Job[Any], priority: int, job_id: int, submitted_ns: int) -> None:
        self.job = job
        self.priority = priority
        self.job_id = job_id
        self.submitted_ns = submitted_ns
        self.waiting_since = 0
        self.queue_position = 0
        self.next_input: ForwardInput | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.times = StepTimes()
        self._has_run = False

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
