"""The gRPC service of a drafter replica."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from fly.clock import SystemClock
from fly.messages import Draft, Open, Role
from protos.flyserve.v1 import common_pb2, drafter_pb2_grpc
from protos.wire.streams import draft_request_from_wire, draft_response_to_wire, info_to_wire
from services.common.host import Host, Service
from services.common.registry import EndpointSource, WatchedRegistry, listed_endpoints
from services.common.security.guard import Guard, service_guard
from services.common.security.identity import ROUTER, Identity, certificate_name
from services.common.stream_server import serve_stream
from services.common.telemetry.metrics.engine import drafter_observer
from services.common.telemetry.process import Telemetry, silent_telemetry
from services.common.telemetry.sessions import DraftSteps, StreamTelemetry
from services.common.telemetry.tracing import StreamTrace
from services.drafter.config import DrafterConfig
from services.drafter.session import DraftingLimits, DraftSession
from services.drafter.sub_drafters import SubDrafters
from services.engine.engine import Engine
from services.engine.factory import build_engine

SERVICE_NAME = "flyserve.v1.Drafter"


class DrafterServicer(drafter_pb2_grpc.DrafterServicer):
    """Serves drafting streams from one engine, helped by sub-drafters."""

    def __init__(
        self,
        engine: Engine,
        sub_drafters: SubDrafters,
        limits: DraftingLimits,
        telemetry: StreamTelemetry[Draft],
    ) -> None:
        self._engine = engine
        self._sub_drafters = sub_drafters
        self._limits = limits
        self._telemetry = telemetry

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        return info_to_wire(self._engine.info, self._engine.load())

    # A coroutine that writes, not a generator: its `finally` runs the moment that the call ends.
    async def Draft(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        async def send(answer: Any) -> None:
            await context.write(draft_response_to_wire(answer))

        with self._telemetry.trace(context) as trace:
            await serve_stream(request_iterator, draft_request_from_wire, partial(self._open, trace), send)

    async def close(self) -> None:
        """Stops the engine and lets go of the sub-drafters."""
        await self._sub_drafters.stop()
        await self._engine.stop()

    @asynccontextmanager
    async def _open(self, trace: StreamTrace, opening: Open) -> AsyncIterator[DraftSteps]:
        sequence = await self._engine.open(opening)
        try:
            async with self._sub_drafters.help(opening, self._engine.info.vocab_size) as help:
                session = DraftSession(self._engine, sequence, help, self._limits)
                try:
                    yield self._telemetry.observed(session, opening, trace)
                finally:
                    await session.close()
        finally:
            self._engine.close(sequence)


async def create_host(config: DrafterConfig) -> Host:
    """Loads the model and returns a host that serves it, not yet started.

    Raises:
        ConfigError: The certificate cannot be used.
        ModelError: The model cannot be served.
    """
    identity = Identity.of(config.security)
    caller = ROUTER if config.role == Role.DRAFTER.value else certificate_name(Role.DRAFTER)
    guard = service_guard(config.security, identity, caller)
    engine = build_engine(config.engine_config(Role(config.role)))
    await engine.start()
    sub_drafters = SubDrafters(_source(config, identity), identity)
    await sub_drafters.start()
    telemetry = Telemetry(config.telemetry, config.role)
    return host_engine(engine, sub_drafters, config.limits, config.address, guard, telemetry)


def host_engine(
    engine: Engine,
    sub_drafters: SubDrafters,
    limits: DraftingLimits | None = None,
    address: str = "127.0.0.1:0",
    guard: Guard | None = None,
    telemetry: Telemetry | None = None,
) -> Host:
    """A host that serves a running engine, not yet started; it stops both when it is drained."""
    telemetry, role = telemetry or silent_telemetry(), engine.info.role
    observer = drafter_observer(telemetry.registry, role, engine.load)
    told = StreamTelemetry(f"{role.value}.draft", telemetry.tracer, observer)
    servicer = DrafterServicer(engine, sub_drafters, limits or DraftingLimits(), told)

    def register(server: grpc.aio.Server) -> None:
        drafter_pb2_grpc.add_DrafterServicer_to_server(servicer, server)

    service = Service(SERVICE_NAME, register, servicer.close, engine.failure)
    return Host(service, address, guard, telemetry=telemetry)


def _source(config: DrafterConfig, identity: Identity | None) -> EndpointSource | None:
    if config.registry is not None:
        return WatchedRegistry(config.registry, SystemClock(), identity)
    if config.sub_drafter is not None:
        return listed_endpoints({Role.SUB_DRAFTER: [config.sub_drafter]}, SystemClock())
    return None
