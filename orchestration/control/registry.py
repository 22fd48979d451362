"""The registry: list the endpoints of usable replicas and stream every change to its watchers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc

from fly.messages import Endpoint, Snapshot
from protos.flyserve.v1 import registry_pb2
from protos.flyserve.v1.registry_pb2_grpc import RegistryServicer, add_RegistryServicer_to_server
from protos.wire.streams import snapshot_to_wire
from services.common.host import Service


class Registry:
    """The current endpoints and their watchers; for one event loop."""

    def __init__(self, generation: int = 0) -> None:
        """Start with no endpoints; the first snapshot has the generation after `generation`."""
        self.snapshot = Snapshot(generation)
        self._watchers: set[asyncio.Queue[Snapshot | None]] = set()

    def publish(self, endpoints: tuple[Endpoint, ...]) -> bool:
        """Send these endpoints to all watchers; return False if they are unchanged."""
        if endpoints == self.snapshot.endpoints:
            return False
        self.snapshot = Snapshot(self.snapshot.generation + 1, endpoints)
        for queue in self._watchers:
            queue.put_nowait(self.snapshot)
        return True

    @contextlib.contextmanager
    def watch(self) -> Iterator[asyncio.Queue[Snapshot | None]]:
        """Yield a queue of the current snapshot and every later one; None when the registry closes."""
        queue: asyncio.Queue[Snapshot | None] = asyncio.Queue()
        queue.put_nowait(self.snapshot)
        self._watchers.add(queue)
        try:
            yield queue
        finally:
            self._watchers.discard(queue)

    def close(self) -> None:
        """End every watch."""
        for queue in self._watchers:
            queue.put_nowait(None)


class RegistryService(RegistryServicer):
    """The gRPC methods `List` and `Watch` of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def List(
        self, request: registry_pb2.ListRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> registry_pb2.ListResponse:
        """Return the current snapshot."""
        return registry_pb2.ListResponse(snapshot=snapshot_to_wire(self._registry.snapshot))

    async def Watch(
        self, request: registry_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[registry_pb2.WatchResponse]:
        """Stream the current snapshot, then every later one, until the registry closes."""
        with self._registry.watch() as snapshots:
            while (snapshot := await snapshots.get()) is not None:
                yield registry_pb2.WatchResponse(snapshot=snapshot_to_wire(snapshot))


def registry_service(registry: Registry) -> Service:
    """Return the registry as a service of a host."""

    async def close() -> None:
        registry.close()

    return Service(
        name="flyserve.v1.Registry",
        register=lambda server: add_RegistryServicer_to_server(RegistryService(registry), server),
        close=close,
    )
