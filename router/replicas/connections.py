"""A response's stream to one replica, which is leased for as long as the stream lives."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Generic, Self, TypeVar

from router.replicas.pools import Replica
from services.common.streams import SequenceStream

S = TypeVar("S", bound=SequenceStream[Any, Any])

_FAREWELL_TIMEOUT_S = 1.0


class Link(Generic[S]):
    """An open stream with its replica; ended by `close` or by `abandon`."""

    def __init__(self, replica: Replica, stream: S) -> None:
        self.replica = replica
        self.stream = stream
        self._held = AsyncExitStack()

    @classmethod
    async def open(cls, replica: Replica, stream: S) -> Self:
        """Leases the replica; the stream itself opens with its first step."""
        link = cls(replica, stream)
        link._held.enter_context(replica.lease(stream.cancel))
        await link._held.enter_async_context(stream)
        return link

    async def close(self) -> None:
        """Says farewell, so that the server may free the sequence in good order."""
        try:
            async with asyncio.timeout(_FAREWELL_TIMEOUT_S):
                await self._held.aclose()
        except TimeoutError:
            self.replica.is_broken.set()

    async def abandon(self, error: BaseException) -> None:
        """Cancels the call: the server frees the sequence at once."""
        await self._held.__aexit__(type(error), error, error.__traceback__)


class Links(Generic[S]):
    """Every link of one side of a response, the one in use last.

    Attributes:
        current: The one in use; None while there is none.
    """

    def __init__(self) -> None:
        self.current: Link[S] | None = None
        self._all: list[Link[S]] = []

    @property
    def num_bytes(self) -> int:
        """Sent and received over all links."""
        return sum(link.stream.num_bytes for link in self._all)

    @property
    def replays(self) -> int:
        """Times that the sequence was replayed, on one link or on the next."""
        return sum(link.stream.replays for link in self._all) + max(0, len(self._all) - 1)

    async def open(self, replica: Replica, stream: S) -> Link[S]:
        """Opens the next link."""
        self.current = await Link.open(replica, stream)
        self._all.append(self.current)
        return self.current

    async def abandon(self, error: BaseException) -> None:
        """Leaves the link in use."""
        link, self.current = self.current, None
        if link is not None:
            await link.abandon(error)

    async def leave(self, error: BaseException | None) -> None:
        """Ends the link in use at the end of the response: in good order where there is no error."""
        if error is not None:
            await self.abandon(error)
        elif self.current is not None:
            await self.current.close()
