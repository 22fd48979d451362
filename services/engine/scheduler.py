"""Continuous batching: which jobs' work goes into the next forward; pure, without threads or tensors."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from services.engine.base import Job, Scores, Slot, Work
from services.engine.ticket import Ticket, works

PATIENCE_TURNS = 4
"""Turns that long work lets short work of its own priority go first."""
STARVATION_TURNS = 64
"""Turns after which any work goes first, whatever its priority."""
BACKGROUND = -(1 << 40)
"""Priority of work that shares no forward with any other: below all that a request may have."""


class Scheduler:
    """Advances jobs together, one forward per turn.

    A turn is `next_batch`, a forward of the tickets' work, then `complete` or `fail`. Tickets that are over
    wait in `take_finished`.

    A forward is filled in this order, as far as its budget of token rows goes: one ticket that is overdue;
    then by priority, short work before long, the longest waiting first. Chunks of a prefill are at most half
    a budget (`EngineCore`), so even when one is overdue in every turn, the other half is left to
    verifications: one that arrives during a long prefill, or many, waits for the forward that runs, no more.
    Whatever waits is overdue some day, so constant load of a higher priority delays the rest, by at most
    `STARVATION_TURNS` and one turn for each that is overdue too, but starves nobody. Background work alone is
    never overdue.
    """

    def __init__(self, max_batch_tokens: int) -> None:
        self._max_batch_tokens = max_batch_tokens
        self._pending: dict[int, Ticket] = {}
        self._finished: list[Ticket] = []
        self._numbers = itertools.count()
        self._places = itertools.count()
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

    def waiting(self) -> list[Work]:
        """What waits for the next forward, but for background work."""
        return works([ticket for ticket in self._pending.values() if ticket.priority != BACKGROUND])

    def first(self) -> Ticket:
        """The ticket that the next batch begins with."""
        return next(self._overdue(), None) or min(self._pending.values(), key=self._rank)

    def next_batch(self, admit: Callable[[Work], bool] = lambda work: True) -> list[Ticket]:
        """The tickets of the next forward, within the token budget; at least one where any can be admitted.

        Args:
            admit: Finds room in memory for a work, or answers that it must wait.
        """
        self._turn += 1
        batch = _Batch(self._max_batch_tokens, admit)
        for ticket in self._overdue():
            if batch.take(ticket):
                break
        for ticket in sorted(self._pending.values(), key=self._rank):
            if batch.room <= 0 or not batch.may_share(ticket):
                break
            batch.take(ticket)
        return batch.tickets

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

    def _rank(self, ticket: Ticket) -> tuple[int, bool, int]:
        """Order of a turn: priority, short work before long, place in line."""
        return -ticket.priority, self._is_long(ticket), ticket.place

    def _is_long(self, ticket: Ticket) -> bool:
        return ticket.work is not None and len(ticket.work.tokens) * 8 > self._max_batch_tokens

    def _overdue(self) -> Iterator[Ticket]:
        """Who has waited too long, the longest first."""
        highest = max((ticket.priority for ticket in self._pending.values()), default=0)
        overdue = (ticket for ticket in self._pending.values() if self._is_overdue(ticket, highest))
        return iter(sorted(overdue, key=lambda ticket: ticket.place))

    def _is_overdue(self, ticket: Ticket, highest: int) -> bool:
        """Long work is that after short work of its own priority, the highest, has passed it a few times."""
        waited = self._turn - ticket.since
        if ticket.priority == BACKGROUND:
            return False
        is_passed = ticket.priority == highest and self._is_long(ticket) and waited >= PATIENCE_TURNS
        return is_passed or waited >= STARVATION_TURNS

    def _throw(self, ticket: Ticket, error: Exception) -> None:
        self._advance(ticket, partial(ticket.job.throw, error))

    def _advance(self, ticket: Ticket, resume: Callable[[], Work]) -> None:
        ticket.since, ticket.place = self._turn, next(self._places)
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


class _Batch:
    """A forward as it fills.

    Attributes:
        tickets: In it.
        room: Token rows left of the budget.
    """

    def __init__(self, max_tokens: int, admit: Callable[[Work], bool]) -> None:
        self.tickets: list[Ticket] = []
        self.room = max_tokens
        self._admit = admit

    def may_share(self, ticket: Ticket) -> bool:
        """Background work goes with its like only."""
        return not self.tickets or (ticket.priority == BACKGROUND) == (self.tickets[0].priority == BACKGROUND)

    def take(self, ticket: Ticket) -> bool:
        """Adds the ticket if its work fits, or is alone, and is admitted; the first may be offered again."""
        work = ticket.work
        if work is None or ticket in self.tickets[:1] or (self.tickets and len(work.tokens) > self.room):
            return False
        if not self._admit(work):
            return False
        self.tickets.append(ticket)
        self.room -= len(work.tokens)
        return True
