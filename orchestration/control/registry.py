"""The registry: stream the endpoints of usable replicas to watchers; collect the reports of routers."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import grpc

from flyserve.core.clock import Clock, SystemClock
from flyserve.core.endpoints import Endpoint, Snapshot
from flyserve.v1 import registry_pb2
from flyserve.v1.registry_pb2_grpc import RegistryServicer, add_RegistryServicer_to_server
from flyserve.wire.streams import snapshot_to_wire
from services.common.host import Service

_REPORT_TTL_S = 5.0
"""Time after which a report of a router is out of date: the router is gone, or its connection is."""


class _Report(NamedTuple):
    """The latest report of a router: sequences that wait in its queue, and alarms by replica."""

    waiting: int
    alarms: Mapping[str, str]
    valid_until_s: float


class Registry:
    """The current endpoints, and the reports of routers; for one event loop."""

    def __init__(self, generation: int = 0, clock: Clock | None = None) -> None:
        """Start with no endpoints; the first snapshot has the generation after `generation`."""
        self.snapshot = Snapshot(generation)
        self._clock = clock or SystemClock()
        self._changed = asyncio.Event()
        self._num_closings = 0
        self._reports: dict[str, _Report] = {}

    def publish(self, endpoints: tuple[Endpoint, ...]) -> bool:
        """Send these endpoints to all watchers; return False if they are unchanged."""
        if endpoints == self.snapshot.endpoints:
            return False
        self.snapshot = Snapshot(self.snapshot.generation + 1, endpoints)
        self._wake()
        return True

    async def watch(self) -> AsyncIterator[Snapshot]:
        """Yield the current snapshot, then the latest one after every change, until the registry closes."""
        seen: Snapshot | None = None
        num_closings = self._num_closings
        while num_closings == self._num_closings:
            if seen is not self.snapshot:
                seen = self.snapshot
                yield seen
            else:
                await self._changed.wait()

    def report(self, router: str, waiting: int, alarms: Mapping[str, str] | None = None) -> None:
        """Record the number of sequences that wait in a router's queue, and its alarms by replica."""
        self._reports[router] = _Report(waiting, alarms or {}, self._clock.now() + _REPORT_TTL_S)

    def waiting(self) -> int:
        """Return the number of sequences that wait in routers."""
        return sum(report.waiting for report in self._valid_reports())

    def alarms(self) -> dict[str, str]:
        """Return the alarm of each replica that has one; of several routers, that of the last to begin."""
        return {name: alarm for report in self._valid_reports() for name, alarm in report.alarms.items()}

    def _valid_reports(self) -> Iterable[_Report]:
        """Return the reports that are not out of date."""
        now = self._clock.now()
        self._reports = {router: each for router, each in self._reports.items() if each.valid_until_s > now}
        return self._reports.values()

    async def close(self) -> None:
        """End every watch; later ones may begin, if the registry is served again."""
        self._num_closings += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class RegistryService(RegistryServicer):
    """The gRPC methods of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def Watch(
        self, request: registry_pb2.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[registry_pb2.WatchResponse]:
        """Stream the current snapshot, then the latest one after every change."""
        async for snapshot in self._registry.watch():
            yield registry_pb2.WatchResponse(snapshot=snapshot_to_wire(snapshot))

    async def Report(
        self, request: registry_pb2.ReportRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> registry_pb2.ReportResponse:
        """Record the report of a router."""
        self._registry.report(request.router, request.waiting, dict(request.alarms))
        return registry_pb2.ReportResponse()


def registry_service(registry: Registry) -> Service:
    """Return the registry as a service of a host."""
    register = partial(add_RegistryServicer_to_server, RegistryService(registry))
    return Service("flyserve.v1.Registry", register, registry.close)
