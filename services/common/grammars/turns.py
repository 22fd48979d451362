"""Turns at a limited number of places, shared fairly by tenants."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from flyserve.core.errors import Overloaded


class Turns:
    """Places that tenants take in turns: a tenant has at most one, and then queues behind the others."""

    def __init__(self, places: int, most_own: int, most: int) -> None:
        """Have `places`; `most_own` of one tenant may wait for them, and `most` of all tenants."""
        self._free = places
        self._most_own = most_own
        self._most = most
        self._busy: set[str] = set()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Hold a place while the block runs.

        Raises:
            Overloaded: Too many of the tenant, or of all, wait.
        """
        num_own, num_all = len(self._waiting.get(tenant, ())), sum(map(len, self._waiting.values()))
        if num_own >= self._most_own or num_all >= self._most:
            limits = f"at most {self._most_own} of one client and {self._most} of all may wait"
            raise Overloaded(f"{num_own} and {num_all} grammars wait to be compiled, {limits}")
        queue = self._waiting.setdefault(tenant, deque())
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave(tenant)
            else:
                with suppress(ValueError):  # a grant may have found it first
                    queue.remove(turn)
                self._grant()
            raise
        try:
            yield
        finally:
            self._leave(tenant)

    def _leave(self, tenant: str) -> None:
        self._busy.discard(tenant)
        self._free += 1
        if tenant in self._waiting:
            self._waiting.move_to_end(tenant)
        self._grant()

    def _grant(self) -> None:
        """Give free places to the tenants that have none, in their order."""
        for tenant in list(self._waiting):
            queue = self._waiting[tenant]
            while queue and queue[0].done():  # its request was cancelled
                queue.popleft()
            if queue and self._free and tenant not in self._busy:
                self._free -= 1
                self._busy.add(tenant)
                queue.popleft().set_result(None)
            if not queue:
                del self._waiting[tenant]
