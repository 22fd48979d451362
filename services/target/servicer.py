"""The gRPC service of a target replica."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from fly.messages import Open, Role, Verification
from protos.flyserve.v1 import common_pb2, target_pb2_grpc
from protos.wire.streams import info_to_wire, verify_request_from_wire, verify_response_to_wire
from services.common.host import Host, Service
from services.common.security.guard import Guard, service_guard
from services.common.security.identity import ROUTER, Identity
from services.common.stream_server import serve_stream
from services.common.telemetry.metrics.engine import target_observer
from services.common.telemetry.process import Telemetry, silent_telemetry
from services.common.telemetry.sessions import StreamTelemetry, VerifySteps
from services.common.telemetry.tracing import StreamTrace
from services.engine.config import StartFollowers
from services.engine.engine import Engine
from services.engine.factory import build_engine
from services.engine.sharding.spawning import spawned_followers
from services.target.config import TargetConfig
from services.target.session import VerifySession

SERVICE_NAME = "flyserve.v1.Target"


class TargetServicer(target_pb2_grpc.TargetServicer):
    """Serves verification streams from one engine."""

    def __init__(self, engine: Engine, telemetry: StreamTelemetry[Verification]) -> None:
        self._engine = engine
        self._telemetry = telemetry

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        return info_to_wire(self._engine.info, self._engine.load())

    # A coroutine that writes, not a generator: its `finally` runs the moment that the call ends.
    async def Verify(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        async def send(answer: Any) -> None:
            await context.write(verify_response_to_wire(answer))

        with self._telemetry.trace(context) as trace:
            await serve_stream(request_iterator, verify_request_from_wire, partial(self._open, trace), send)

    async def close(self) -> None:
        """Stops the engine."""
        await self._engine.stop()

    @asynccontextmanager
    async def _open(self, trace: StreamTrace, opening: Open) -> AsyncIterator[VerifySteps]:
        sequence = await self._engine.open(opening)
        try:
            yield self._telemetry.observed(VerifySession(self._engine, sequence), opening, trace)
        finally:
            self._engine.close(sequence)


async def create_host(config: TargetConfig, start_followers: StartFollowers | None = None) -> Host:
    """Loads the model and returns a host that serves it, not yet started.

    Args:
        config: Of the replica.
        start_followers: Of a shared model; by default they are child processes.

    Raises:
        ConfigError: The certificate cannot be used.
        ModelError: The model cannot be served.
    """
    guard = service_guard(config.security, Identity.of(config.security), ROUTER)
    engine_config = config.engine_config(Role.TARGET)
    engine = build_engine(engine_config, None, start_followers or spawned_followers(engine_config))
    await engine.start()
    telemetry = Telemetry(config.telemetry, Role.TARGET.value)
    return host_engine(engine, config.address, guard, telemetry)


def host_engine(
    engine: Engine,
    address: str = "127.0.0.1:0",
    guard: Guard | None = None,
    telemetry: Telemetry | None = None,
) -> Host:
    """A host that serves a running engine, not yet started; it stops the engine when it is drained."""
    telemetry = telemetry or silent_telemetry()
    observer = target_observer(telemetry.registry, engine.load)
    servicer = TargetServicer(engine, StreamTelemetry("target.verify", telemetry.tracer, observer))

    def register(server: grpc.aio.Server) -> None:
        target_pb2_grpc.add_TargetServicer_to_server(servicer, server)

    service = Service(SERVICE_NAME, register, servicer.close, engine.failure)
    return Host(service, address, guard, telemetry=telemetry)
