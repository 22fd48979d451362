"""Sources of endpoints: lists, names that are looked up, and the registry, which may be away for a while."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

import grpc

from fly.clock import Clock
from fly.messages import Endpoint, Role, Snapshot
from protos.flyserve.v1 import registry_pb2
from protos.flyserve.v1.registry_pb2_grpc import RegistryStub
from protos.wire.streams import snapshot_from_wire
from services.common.backoff import Backoff
from services.common.channel import open_channel
from services.common.security.identity import CONTROLLER, Identity

logger = logging.getLogger(__name__)

DNS = "dns:"
"""Begins an entry of a list that is a name of many addresses."""
LOOK_UP_S = 5.0
"""How often names are looked up."""


LookUp = Callable[[str], Awaitable[Iterable[str]]]


class EndpointSource(Protocol):
    """Tells where the replicas are.

    Attributes:
        is_static: It tells once, and whoever wrote the list answers for it.
    """

    is_static: bool

    def watch(self) -> AsyncGenerator[Snapshot, None]:
        """The present snapshot, then every later one; closing it frees what it holds."""


class StaticEndpoints:
    """Endpoints from a configuration."""

    is_static = True

    def __init__(self, addresses: Mapping[Role, Sequence[str]]) -> None:
        endpoints = (Endpoint(role, place, place) for role, places in addresses.items() for place in places)
        self._snapshot = Snapshot(1, tuple(endpoints))

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        yield self._snapshot


class NamedEndpoints:
    """Endpoints from names that stand for every replica of a tier, looked up again and again.

    An entry `dns:host:port` is a name of many addresses, such as a headless service of Kubernetes has; any
    other is an address. While a name cannot be looked up, what it last stood for holds.
    """

    is_static = False

    def __init__(
        self, addresses: Mapping[Role, Sequence[str]], clock: Clock, look_up: LookUp | None = None
    ) -> None:
        """Looks nothing up yet; `look_up` gives a name's addresses, by default those of the system."""
        self._addresses = addresses
        self._clock = clock
        self._look_up = look_up or addresses_of
        self._known: dict[str, tuple[str, ...]] = {}

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        snapshot = Snapshot()
        while True:
            endpoints = tuple([endpoint async for endpoint in self._endpoints()])
            if endpoints != snapshot.endpoints:
                snapshot = Snapshot(snapshot.generation + 1, endpoints)
                yield snapshot
            await self._clock.sleep(LOOK_UP_S)

    async def _endpoints(self) -> AsyncGenerator[Endpoint, None]:
        for role, entries in self._addresses.items():
            for entry in entries:
                for place in await self._places(entry):
                    yield Endpoint(role, place, place)

    async def _places(self, entry: str) -> tuple[str, ...]:
        """Every host:port that an entry stands for, in order."""
        if not entry.startswith(DNS):
            return (entry,)
        name, _, port = entry.removeprefix(DNS).rpartition(":")
        try:
            hosts = await self._look_up(name)
        except OSError as error:
            logger.warning("%s cannot be looked up (%s): its last addresses hold", name, error.strerror)
        else:
            self._known[entry] = tuple(sorted(f"{host}:{port}" for host in hosts))
        return self._known.get(entry, ())


async def addresses_of(name: str) -> set[str]:
    """Every address of a name, as they stand before a port; raises OSError where it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    hosts = {str(place[0]) for *_, place in found}
    return {f"[{host}]" if ":" in host else host for host in hosts}


def listed_endpoints(addresses: Mapping[Role, Sequence[str]], clock: Clock) -> EndpointSource:
    """The endpoints of a list of `host:port` and `dns:host:port`."""
    has_names = any(entry.startswith(DNS) for entries in addresses.values() for entry in entries)
    return NamedEndpoints(addresses, clock) if has_names else StaticEndpoints(addresses)


class WatchedRegistry:
    """Endpoints from the registry; while it is away, its last word holds."""

    is_static = False

    def __init__(self, address: str, clock: Clock, identity: Identity | None = None) -> None:
        """Is at host:port `address`; called with an `identity`, or in plaintext."""
        self._address = address
        self._clock = clock
        self._identity = identity

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        backoff = Backoff()
        while True:
            tls = self._identity.toward(CONTROLLER) if self._identity else None
            async with (
                open_channel(self._address, tls) as channel,
                aclosing(self._connection(channel)) as snapshots,
            ):
                async for snapshot in snapshots:
                    backoff = Backoff()
                    yield snapshot
            await self._clock.sleep(backoff.next_s())

    async def _connection(self, channel: grpc.aio.Channel) -> AsyncGenerator[Snapshot, None]:
        """The snapshots of one connection; ends with it."""
        call = RegistryStub(channel).Watch(registry_pb2.WatchRequest())
        try:
            async for response in call:
                yield snapshot_from_wire(response.snapshot)
        except grpc.aio.AioRpcError as error:
            logger.warning("registry %s is away (%s): its last word holds", self._address, error.code().name)
        finally:
            call.cancel()
