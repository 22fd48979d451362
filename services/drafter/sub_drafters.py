"""The sub-drafters that a drafter knows of, and a guesser at one of them for every sequence."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import grpc

from fly.messages import Open, Role, Snapshot
from services.common.channel import open_channel
from services.common.registry import EndpointSource
from services.common.streams import DrafterStream
from services.drafter.drafting import Guesser, NoGuesser
from services.drafter.guesser import RemoteGuesser


class SubDrafters:
    """Follows a source of endpoints, and spreads the sequences over the sub-drafters in it."""

    def __init__(self, source: EndpointSource | None) -> None:
        self._source = source
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._num_opened = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to follow the source."""
        if self._source is not None:
            self._task = asyncio.create_task(self._follow(self._source), name="sub-drafters")

    async def stop(self) -> None:
        """Closes every channel."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for address in list(self._channels):
            await self._channels.pop(address).close()

    @asynccontextmanager
    async def guesser(self, opening: Open) -> AsyncIterator[Guesser]:
        """A guesser for one sequence; none where its request or the deployment has no sub-drafter."""
        channel = None if opening.without_sub_drafter else self._pick()
        if channel is None:
            yield NoGuesser()
            return
        guesser = RemoteGuesser(DrafterStream(channel, opening))
        task = asyncio.create_task(guesser.run(), name=f"guesser {opening.request_id}")
        try:
            yield guesser
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _pick(self) -> grpc.aio.Channel | None:
        """One after the other."""
        if not self._channels:
            return None
        self._num_opened += 1
        return list(self._channels.values())[self._num_opened % len(self._channels)]

    async def _follow(self, source: EndpointSource) -> None:
        async with aclosing(source.watch()) as snapshots:
            async for snapshot in snapshots:
                await self._apply(snapshot)

    async def _apply(self, snapshot: Snapshot) -> None:
        usable = (e for e in snapshot.endpoints if e.role is Role.SUB_DRAFTER and not e.draining)
        addresses = {endpoint.address for endpoint in usable}
        for gone in self._channels.keys() - addresses:
            await self._channels.pop(gone).close()
        for new in addresses - self._channels.keys():
            self._channels[new] = open_channel(new)
