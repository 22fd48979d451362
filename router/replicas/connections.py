"""Streams of one response to replicas; a replica is leased for as long as its stream is open."""

from contextlib import AsyncExitStack
from typing import Any, Generic, Self, TypeVar

from flyserve.core.errors import Overloaded
from router.replicas.replica import Replica
from services.common.streams import SequenceStream

S = TypeVar("S", bound=SequenceStream[Any, Any])


class Connection(Generic[S]):
    """An open stream and its replica; ended by `close` or by `cancel`."""

    def __init__(self, replica: Replica, stream: S) -> None:
        self.replica = replica
        self.stream = stream
        self._stack = AsyncExitStack()

    @classmethod
    async def open(cls, replica: Replica, stream: S) -> Self:
        """Lease the replica; the stream itself opens with its first step."""
        connection = cls(replica, stream)
        connection._stack.enter_context(replica.lease(stream.cancel))
        await connection._stack.enter_async_context(stream)
        return connection

    async def close(self) -> None:
        """Send the closing message, so that the server can free the sequence in an orderly way."""
        await self._stack.aclose()

    async def cancel(self, error: BaseException) -> None:
        """Cancel the call: the server frees the sequence at once."""
        await self._stack.__aexit__(type(error), error, error.__traceback__)


class Connections(Generic[S]):
    """All connections of one response to one tier, in order.

    Attributes:
        current: The connection in use; None while there is none.
    """

    def __init__(self) -> None:
        self.current: Connection[S] | None = None
        self._all: list[Connection[S]] = []
        self._num_refused = 0

    @property
    def num_bytes(self) -> int:
        """Bytes sent and received over all connections."""
        return sum(connection.stream.num_bytes for connection in self._all)

    @property
    def replays(self) -> int:
        """Full-sequence replays, on one connection or on the next.

        A replica that refused a sequence never had it, so the next one replays nothing.
        """
        num_used = len(self._all) - self._num_refused
        return sum(connection.stream.replays for connection in self._all) + max(0, num_used - 1)

    async def open(self, replica: Replica, stream: S) -> Connection[S]:
        """Open the next connection."""
        self.current = await Connection.open(replica, stream)
        self._all.append(self.current)
        return self.current

    async def cancel(self, error: BaseException) -> None:
        """Cancel the connection in use."""
        connection, self.current = self.current, None
        if connection is not None:
            self._num_refused += isinstance(error, Overloaded)
            await connection.cancel(error)

    async def end(self, error: BaseException | None) -> None:
        """End the connection in use at the end of the response: close it, or cancel it after an error."""
        if error is not None:
            await self.cancel(error)
        elif self.current is not None:
            await self.current.close()
