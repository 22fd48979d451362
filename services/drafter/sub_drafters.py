"""The sub-drafters that a drafter knows of, and a proposer at one of them for every sequence."""

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
from services.drafter.help import NoHelp, SubDrafterSession
from services.drafter.proposal_link import ProposalLink
from services.drafter.worth import Worth

_FAREWELL_S = 1.0
_RETIREMENT_S = 600.0


class SubDrafters:
    """Follows a source of endpoints, and spreads the sequences over the sub-drafters in it."""

    def __init__(self, source: EndpointSource | None, identity: Identity | None = None) -> None:
        """Calls them with an `identity`, or in plaintext."""
        self._source = source
        self._identity = identity
        self._version = identity.version if identity else 0
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._num_opened = 0
        self._worth = Worth()
        self._task: asyncio.Task[None] | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begins to follow the source."""
        if self._source is not None:
            self._task = asyncio.create_task(self._follow(self._source), name="sub-drafters")

    async def stop(self) -> None:
        """Closes every channel."""
        tasks = [*self._links, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for address in list(self._channels):
            await self._channels.pop(address).close()

    @asynccontextmanager
    async def help(self, opening: Open, vocab_size: int) -> AsyncIterator[SubDrafterSession]:
        """Help for one sequence; none where its request or the deployment has no sub-drafter.

        On leaving, a sub-drafter is told what the sequence came to, where that is known.
        """
        if self._source is None or opening.without_sub_drafter:
            yield NoHelp()
            return
        link = ProposalLink(partial(self._open_stream, opening), self._worth, vocab_size)
        task = asyncio.create_task(link.run(), name=f"proposals {opening.request_id}")
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        try:
            yield link
        finally:
            # NOTE: the farewell goes its own way: nobody waits for a sub-drafter that is away.
            asyncio.get_running_loop().call_later(_FAREWELL_S if link.is_concluded else 0.0, task.cancel)

    def _open_stream(self, opening: Open) -> DrafterStream | None:
        """At one after the other."""
        if not self._channels:
            return None
        self._renew()
        self._num_opened += 1
        channel = list(self._channels.values())[self._num_opened % len(self._channels)]
        return DrafterStream(channel, opening)

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
            self._channels[new] = self._open_channel(new)

    def _open_channel(self, address: str) -> grpc.aio.Channel:
        name = certificate_name(Role.SUB_DRAFTER)
        return open_channel(address, self._identity.peer_tls(name) if self._identity else None)

    def _renew(self) -> None:
        """New channels, where the certificate has changed; what runs on the old ones may finish."""
        if self._identity is None or self._identity.version == self._version:
            return
        self._version = self._identity.version
        for address, outdated in list(self._channels.items()):
            self._channels[address] = self._open_channel(address)
            task = asyncio.create_task(outdated.close(_RETIREMENT_S), name="outdated channel")
            self._links.add(task)
            task.add_done_callback(self._links.discard)
