"""The registry: which replicas may be used, where they are, and who is told of every change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import grpc

from fly.messages import Role
from protos.flyserve.v1 import registry_pb2
from protos.flyserve.v1.registry_pb2_grpc import RegistryServicer, add_RegistryServicer_to_server
from services.common.host import Service

_ROLES = {
    Role.TARGET: registry_pb2.ROLE_TARGET,
    Role.DRAFTER: registry_pb2.ROLE_DRAFTER,
    Role.SUB_DRAFTER: registry_pb2.ROLE_SUB_DRAFTER,
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica's place.

    Attributes:
        role: Its tier.
        replica: Its name, stable over restarts.
        address: host:port of its gRPC server.
        generation: Increases each time the replica is started anew.
        draining: It takes no new sequences.
    """

    role: Role
    replica: str
    address: str
    generation: int
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All endpoints at one time; `generation` increases with every change."""

    generation: int = 0
    endpoints: tuple[Endpoint, ...] = ()


class Registry:
    """The endpoints and their watchers; for one event loop.

    It remembers replicas that it does not list at present, so that their generations go on.
    """

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self._known: dict[str, Endpoint] = {}
        self._listed: set[str] = set()
        self._watchers: set[asyncio.Queue[Snapshot | None]] = set()

    def publish(self, role: Role, replica: str, address: str) -> None:
        """Lists a replica; an address that it did not have before means that it was started anew."""
        known = self._known.get(replica)
        if known is None or known.address != address:
            known = Endpoint(role, replica, address, known.generation + 1 if known else 1)
        elif replica in self._listed:
            return
        self._known[replica] = known
        self._listed.add(replica)
        self._changed()

    def withdraw(self, replica: str, address: str) -> None:
        """Lists a replica no more, unless it has another address by now."""
        if replica in self._listed and self._known[replica].address == address:
            self._listed.remove(replica)
            self._changed()

    def mark_draining(self, replica: str, address: str) -> None:
        """Tells that a replica takes no new sequences, unless it has another address by now."""
        known = self.endpoint(replica)
        if known is not None and known.address == address and not known.draining:
            self._known[replica] = replace(known, draining=True)
            self._changed()

    def endpoint(self, replica: str) -> Endpoint | None:
        """Where a replica is; None where it is not listed."""
        return self._known[replica] if replica in self._listed else None

    @contextlib.contextmanager
    def watch(self) -> Iterator[asyncio.Queue[Snapshot | None]]:
        """A queue of the present snapshot and every later one; None when the registry closes."""
        queue: asyncio.Queue[Snapshot | None] = asyncio.Queue()
        queue.put_nowait(self.snapshot)
        self._watchers.add(queue)
        try:
            yield queue
        finally:
            self._watchers.discard(queue)

    def close(self) -> None:
        """Ends every watch."""
        for queue in self._watchers:
            queue.put_nowait(None)

    def _changed(self) -> None:
        endpoints = tuple(self._known[replica] for replica in sorted(self._listed))
        self.snapshot = Snapshot(self.snapshot.generation + 1, endpoints)
        for queue in self._watchers:
            queue.put_nowait(self.snapshot)


class RegistryService(RegistryServicer):
    """`List` and `Watch` of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def List(
        self, request: registry_pb2.ListRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> registry_pb2.ListResponse:
        """The present snapshot."""
        return registry_pb2.ListResponse(snapshot=_to_wire(self._registry.snapshot))

    async def Watch(
        self, request: registry_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[registry_pb2.WatchResponse]:
        """The present snapshot, then every later one, until the registry closes."""
        with self._registry.watch() as snapshots:
            while (snapshot := await snapshots.get()) is not None:
                yield registry_pb2.WatchResponse(snapshot=_to_wire(snapshot))


def registry_service(registry: Registry) -> Service:
    """The registry as a host serves it."""

    async def close() -> None:
        registry.close()

    return Service(
        name="flyserve.v1.Registry",
        register=lambda server: add_RegistryServicer_to_server(RegistryService(registry), server),
        close=close,
    )


def _to_wire(snapshot: Snapshot) -> registry_pb2.Snapshot:
    return registry_pb2.Snapshot(
        generation=snapshot.generation,
        endpoints=[
            registry_pb2.Endpoint(
                role=_ROLES[endpoint.role],
                address=endpoint.address,
                replica=endpoint.replica,
                generation=endpoint.generation,
                draining=endpoint.draining,
            )
            for endpoint in snapshot.endpoints
        ],
    )
