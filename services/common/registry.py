"""Sources of endpoints: static lists, and the registry, which may be away for a while."""

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

import grpc

from fly.clock import Clock
from fly.messages import Endpoint, Role, Snapshot
from protos.flyserve.v1 import registry_pb2
from protos.flyserve.v1.registry_pb2_grpc import RegistryStub
from services.common.backoff import Backoff
from services.common.channel import open_channel
from services.common.codec.registry import snapshot_from_wire
from services.common.security.identity import CONTROLLER, Identity

logger = logging.getLogger(__name__)


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
