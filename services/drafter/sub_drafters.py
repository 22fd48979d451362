"""The available sub-drafters of a drafter, and a session at one of them for every sequence."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial

import grpc

from fly.messages import Open, Role, Snapshot
from services.common.channel import open_channel
from services.common.endpoint_sources import EndpointSource
from services.common.security.identity import Identity, certificate_name
from services.common.streams import DrafterStream
from services.drafter.base import NullSubDrafter, SubDrafterSession
from services.drafter.cost_model import SpeculationBenefit
from services.drafter.sub_drafter_client import SubDrafterClient

_FINISH_TIMEOUT_S = 1.0
"""Time to send the final sequence to the sub-drafter."""

_CLOSE_GRACE_S = 600.0
"""Time for open streams to finish on a channel with an outdated certificate."""


class SubDrafters:
    """The sub-drafters of a source of endpoints; sequences are distributed over them in turn."""

    def __init__(self, source: EndpointSource | None, identity: Identity | None = None) -> None:
        """Create it without channels.

        Args:
            source: Endpoints of the sub-drafters; None if the deployment has none.
            identity: Certificate of this drafter; None connects in plaintext.
        """
        self._source = source
        self._identity = identity
        self._version = identity.version if identity else 0
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._num_opened = 0
        self._benefit = SpeculationBenefit()
        self._watcher: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start to watch the source."""
        if self._source is not None:
            self._watcher = asyncio.create_task(self._watch(self._source), name="sub-drafters")

    async def stop(self) -> None:
        """Cancel all tasks and close every channel."""
        tasks = [*self._tasks, *([] if self._watcher is None else [self._watcher])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for address in list(self._channels):
            await self._channels.pop(address).close()

    @asynccontextmanager
    async def session(self, opening: Open, vocab_size: int) -> AsyncIterator[SubDrafterSession]:
        """Open a session for one sequence; a null session if the request or deployment has no sub-drafter.

        If the session is finished, the final sequence is sent to the sub-drafter after the exit.
        """
        if self._source is None or opening.without_sub_drafter:
            yield NullSubDrafter()
            return
        client = SubDrafterClient(partial(self._open_stream, opening), self._benefit, vocab_size)
        task = asyncio.create_task(client.run(), name=f"proposals {opening.request_id}")
        self._keep(task)
        try:
            yield client
        finally:
            # NOTE: the task sends the final sequence by itself: the drafter does not wait for a sub-drafter.
            delay_s = _FINISH_TIMEOUT_S if client.is_finished else 0.0
            asyncio.get_running_loop().call_later(delay_s, task.cancel)

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Hold a reference to the task until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _open_stream(self, opening: Open) -> DrafterStream | None:
        """Open a stream to the next sub-drafter in turn; None if there is none."""
        if not self._channels:
            return None
        self._renew_channels()
        self._num_opened += 1
        channel = list(self._channels.values())[self._num_opened % len(self._channels)]
        return DrafterStream(channel, opening)

    async def _watch(self, source: EndpointSource) -> None:
        async with aclosing(source.watch()) as snapshots:
            async for snapshot in snapshots:
                await self._apply(snapshot)

    async def _apply(self, snapshot: Snapshot) -> None:
        addresses = {
            endpoint.address
            for endpoint in snapshot.endpoints
            if endpoint.role is Role.SUB_DRAFTER and not endpoint.draining
        }
        for address in self._channels.keys() - addresses:
            await self._channels.pop(address).close()
        for address in addresses - self._channels.keys():
            self._channels[address] = self._open_channel(address)

    def _open_channel(self, address: str) -> grpc.aio.Channel:
        name = certificate_name(Role.SUB_DRAFTER)
        return open_channel(address, self._identity.peer_tls(name) if self._identity else None)

    def _renew_channels(self) -> None:
        """Replace all channels if the certificate has changed; streams on the old ones may finish."""
        if self._identity is None or self._identity.version == self._version:
            return
        self._version = self._identity.version
        for address, outdated in list(self._channels.items()):
            self._channels[address] = self._open_channel(address)
            self._keep(asyncio.create_task(outdated.close(_CLOSE_GRACE_S), name="outdated channel"))
