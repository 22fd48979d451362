"""Endpoint sources: a list of addresses, DNS names that are resolved repeatedly, or the registry."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

import grpc

from flyserve.core.clock import Clock
from flyserve.core.endpoints import Endpoint, Snapshot
from flyserve.core.errors import describe
from flyserve.core.messages import Role
from flyserve.v1 import registry_pb2
from flyserve.v1.registry_pb2_grpc import RegistryStub
from flyserve.wire.streams import snapshot_from_wire
from services.common.channel import Backoff, open_channel
from services.common.security.identity import CONTROLLER, Identity

logger = logging.getLogger(__name__)

DNS = "dns:"
"""Prefix of an entry that is a DNS name with many addresses."""
RESOLVE_INTERVAL_S = 5.0
"""Interval at which DNS names are resolved."""

Resolve = Callable[[str], Awaitable[Iterable[str]]]


class EndpointSource(Protocol):
    """A stream of snapshots of the replicas' endpoints.

    Attributes:
        is_static: There is exactly one snapshot, taken from the configuration as it is.
    """

    is_static: bool

    def watch(self) -> AsyncGenerator[Snapshot, None]:
        """Yield the current snapshot, then every later one; closing the generator frees its resources."""


class ListedEndpointSource:
    """Endpoints from a list of addresses, and of DNS names with many addresses each, resolved every 5 s.

    An entry `dns:host:port` is such a name, for example of a headless service of Kubernetes; any other entry
    is an address. While a name cannot be resolved, its last addresses stay in use.
    """

    def __init__(
        self, addresses: Mapping[Role, Sequence[str]], clock: Clock, resolve: Resolve | None = None
    ) -> None:
        """Resolve nothing yet; `resolve` returns the addresses of a name, by default from the system."""
        self.is_static = not any(entry.startswith(DNS) for listed in addresses.values() for entry in listed)
        self._addresses = addresses
        self._clock = clock
        self._resolve = resolve or resolve_addresses
        self._known: dict[str, tuple[str, ...]] = {}

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        snapshot = Snapshot()
        while True:
            endpoints = tuple(
                [
                    Endpoint(role, address, address)
                    for role, entries in self._addresses.items()
                    for entry in entries
                    for address in await self._addresses_of(entry)
                ]
            )
            if endpoints != snapshot.endpoints:
                snapshot = Snapshot(snapshot.generation + 1, endpoints)
                yield snapshot
            if self.is_static:
                return
            await self._clock.sleep(RESOLVE_INTERVAL_S)

    async def _addresses_of(self, entry: str) -> tuple[str, ...]:
        """Return every host:port of an entry, in order."""
        if not entry.startswith(DNS):
            return (entry,)
        name, _, port = entry.removeprefix(DNS).rpartition(":")
        try:
            hosts = await self._resolve(name)
        except Exception as error:
            # NOTE: not only an OSError: a name may be too long. Without a watch no replica is ever found.
            reason = getattr(error, "strerror", None) or describe(error)
            logger.warning("%s cannot be resolved (%s): its last addresses stay in use", name, reason)
        else:
            self._known[entry] = tuple(sorted(f"{host}:{port}" for host in hosts))
        return self._known.get(entry, ())


async def resolve_addresses(name: str) -> set[str]:
    """Return every address of a name, ready to be followed by a port; raise OSError if there is none."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    hosts = {str(place[0]) for *_, place in found}
    return {f"[{host}]" if ":" in host else host for host in hosts}


class RegistryEndpointSource:
    """Endpoints from the registry; while it is unavailable, its last snapshot stays in use."""

    is_static = False

    def __init__(self, address: str, clock: Clock, identity: Identity | None = None) -> None:
        """Watch the registry at host:port `address`, with a TLS `identity` or in plaintext."""
        self._address = address
        self._clock = clock
        self._identity = identity

    async def watch(self) -> AsyncGenerator[Snapshot, None]:
        backoff = Backoff()
        while True:
            tls = self._identity.peer_tls(CONTROLLER) if self._identity else None
            async with open_channel(self._address, tls) as channel:
                try:
                    async for response in RegistryStub(channel).Watch(registry_pb2.WatchRequest()):
                        backoff = Backoff()
                        yield snapshot_from_wire(response.snapshot)
                except Exception as error:
                    # NOTE: whatever it answers, it is asked again; without a watch no replica is ever found.
                    reason = error.code().name if isinstance(error, grpc.aio.AioRpcError) else repr(error)
                    logger.warning(
                        "registry %s is unavailable (%s): its last snapshot stays in use",
                        self._address,
                        reason,
                    )
            await self._clock.sleep(backoff.next_s())
