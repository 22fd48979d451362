"""A draft that was requested and not taken yet, and the wait for it."""

import asyncio
import math

from flyserve.core.messages import Draft
from router.replicas.replica import Replica


class OutstandingDraft:
    """A draft that was requested, at `requested_s` on the event loop's clock, and not taken yet.

    Attributes:
        result: The draft; None if it failed, or has not arrived.
        has_ended: True if it has arrived, or has failed.
    """

    __slots__ = ("_loop", "_waiter", "has_ended", "max_tokens", "replica", "requested_s", "result")

    def __init__(self, replica: Replica, max_tokens: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self.replica = replica
        self.max_tokens = max_tokens
        self.requested_s = self._loop.time()
        self.result: Draft | None = None
        self.has_ended = False

    def end(self, result: Draft | None) -> None:
        """Set the result."""
        self.result, self.has_ended = result, True
        self._wake()

    async def ends(self, due_s: float) -> None:
        """Return when it ends, or at `due_s` on the loop's clock; infinity sets no time.

        NOTE: waiting for the task that drafts costs one more iteration of the event loop in every round.
        """
        if self.has_ended or due_s <= self._loop.time():
            return
        self._waiter = self._loop.create_future()
        timer = None if math.isinf(due_s) else self._loop.call_at(due_s, self._wake)
        try:
            await self._waiter
        finally:
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
