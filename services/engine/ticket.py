"""A submitted job and what becomes of it."""

from collections.abc import Sequence
from typing import Any

from fly.messages import StepTimes
from services.engine.base import Job, Work


class Ticket:
    """A submitted job and what becomes of it.

    Attributes:
        work: What it wants of the next forward; None once it is over.
        result: What it returned.
        error: What it raised.
        since: Turn from which it has been waiting.
        place: In line: who has waited longer has a lower one.
        times: Its share of queue and forwards, and what was computed for it, so far.
    """

    __slots__ = (
        "_forwarded",
        "error",
        "job",
        "number",
        "place",
        "priority",
        "result",
        "since",
        "submitted_ns",
        "times",
        "work",
    )

    def __init__(self, job: Job[Any], priority: int, number: int, submitted_ns: int) -> None:
        self.job = job
        self.priority = priority
        self.number = number
        self.submitted_ns = submitted_ns
        self.since = 0
        self.place = 0
        self.work: Work | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.times = StepTimes()
        self._forwarded = False

    def count_forward(self, started_ns: int, forward_ns: int, batch_size: int, batch_tokens: int) -> None:
        """Its work was computed, in a forward of so many sequences and token rows."""
        times, work = self.times, self.work
        assert work is not None
        queue_ns = times.queue_ns if self._forwarded else started_ns - self.submitted_ns
        self._forwarded = True
        self.times = StepTimes(
            queue_ns=queue_ns,
            forward_ns=times.forward_ns + forward_ns,
            batch_size=max(times.batch_size, batch_size),
            batch_tokens=max(times.batch_tokens, batch_tokens),
            prefill_tokens=times.prefill_tokens + work.num_unanswered,
            reused_tokens=times.reused_tokens + work.num_reused,
        )


def works(batch: Sequence[Ticket]) -> list[Work]:
    """What the tickets of a batch want."""
    return [ticket.work for ticket in batch if ticket.work is not None]
