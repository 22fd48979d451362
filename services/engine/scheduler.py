"""Continuous batching: which jobs' work goes into the next forward; pure, without threads or tensors."""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fly.messages import StepTimes
from services.engine.base import Job, Scores, Slot, Work

PATIENCE_TURNS = 4
"""Turns that long work lets short work go first."""


class Ticket:
    """A submitted job and what becomes of it.

    Attributes:
        work: What it wants of the next forward; None once it is over.
        result: What it returned.
        error: What it raised.
        times: Its share of queue and forwards, and what was computed for it, so far.
    """

    __slots__ = (
        "_forwarded",
        "error",
        "job",
        "number",
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


class Scheduler:
    """Advances jobs together, one forward per turn.

    A turn is `next_batch`, a forward of the tickets' work, then `complete` or `fail`. Tickets that are over
    wait in `take_finished`.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._pending: dict[int, Ticket] = {}
        self._finished: list[Ticket] = []
        self._numbers = itertools.count()
        self._turn = 0

    def __len__(self) -> int:
        return len(self._pending)

    def submit(self, job: Job[Any], priority: int = 0, now_ns: int = 0) -> Ticket:
        """Starts the job; higher priorities go first."""
        ticket = Ticket(job, priority, next(self._numbers), now_ns)
        self._pending[ticket.number] = ticket
        self._advance(ticket, partial(next, job))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Ends a job between turns; no effect on one that is over."""
        if self._pending.pop(ticket.number, None) is not None:
            ticket.work = None
            ticket.job.close()

    def throw(self, slot: Slot, error: Exception) -> None:
        """Raises `error` inside the job that waits with work for `slot`, if there is one."""
        for ticket in list(self._pending.values()):
            if ticket.work is not None and ticket.work.slot == slot:
                self._throw(ticket, error)

    def pending_slots(self) -> set[Slot]:
        """Slots that some job waits with work for."""
        return {ticket.work.slot for ticket in self._pending.values() if ticket.work is not None}

    def first(self) -> Ticket:
        """The ticket that the next batch begins with."""
        return min(self._pending.values(), key=self._rank)

    def next_batch(self, admit: Callable[[Work], bool] = lambda work: True) -> list[Ticket]:
        """The tickets of the next forward, within the token budget; at least one where any can be admitted.

        Args:
            admit: Finds room in memory for a work, or answers that it must wait.
        """
        self._turn += 1
        room = self._max_batch_tokens
        batch: list[Ticket] = []
        for ticket in sorted(self._pending.values(), key=self._rank):
            work = ticket.work
            if work is None or (batch and len(work.tokens) > room) or not admit(work):
                continue
            batch.append(ticket)
            room -= len(work.tokens)
            if room <= 0:
                break
        return batch

    def complete(
        self, batch: Sequence[Ticket], scores: Sequence[Scores], started_ns: int = 0, forward_ns: int = 0
    ) -> None:
        """Sends each job its scores."""
        batch_tokens = sum(len(work.tokens) for work in works(batch))
        for ticket, score in zip(batch, scores, strict=True):
            ticket.count_forward(started_ns, forward_ns, len(batch), batch_tokens)
            self._advance(ticket, partial(ticket.job.send, score))

    def fail(self, batch: Sequence[Ticket], error: Exception) -> None:
        """Raises `error` inside the jobs of a forward that failed."""
        for ticket in batch:
            self._throw(ticket, error)

    def take_finished(self) -> list[Ticket]:
        """The tickets that are over since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def _rank(self, ticket: Ticket) -> tuple[int, bool, int, int]:
        """Order of a turn: priority, short work before long that has not waited yet, age."""
        num_tokens = len(ticket.work.tokens) if ticket.work is not None else 0
        is_long = num_tokens * 8 > self._max_batch_tokens and self._turn - ticket.since < PATIENCE_TURNS
        return -ticket.priority, is_long, ticket.since, ticket.number

    def _throw(self, ticket: Ticket, error: Exception) -> None:
        self._advance(ticket, partial(ticket.job.throw, error))

    def _advance(self, ticket: Ticket, resume: Callable[[], Work]) -> None:
        ticket.since = self._turn
        try:
            ticket.work = resume()
        except StopIteration as stop:
            ticket.result = stop.value
        except BaseException as error:  # a job's failure is its own, whatever it is
            ticket.error = error
        else:
            return
        ticket.work = None
        del self._pending[ticket.number]
        self._finished.append(ticket)


def works(batch: Sequence[Ticket]) -> list[Work]:
    """What the tickets of a batch want."""
    return [ticket.work for ticket in batch if ticket.work is not None]
