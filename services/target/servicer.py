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
from services.common.security.access_policy import AccessPolicy, service_access_policy
from services.common.security.identity import ROUTER, Identity
from services.common.stream_server import serve_stream
from services.common.telemetry.instrumented_stream import StreamTelemetry, VerifySteps
from services.common.telemetry.process import Telemetry, silent_telemetry
from services.common.telemetry.tracing import Span
from services.engine.config import StartFollowers
from services.engine.engine import Engine
from services.engine.factory import build_engine
from services.engine.sharding.follower import spawn_followers
from services.target.config import TargetConfig
from services.target.metrics import TargetMetrics
from services.target.session import VerifySession

SERVICE_NAME = "flyserve.v1.Target"


class TargetServicer(target_pb2_grpc.TargetServicer):
    """Serves verification streams from one engine."""

    def __init__(self, engine: Engine, telemetry: StreamTelemetry[Verification]) -> None:
        self._engine = engine
        self._telemetry = telemetry

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        return info_to_wire(self._engine.info, self._engine.load())

    # A coroutine that writes, not a generator: its `finally` runs as soon as the call ends.
    async def Verify(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        async def send(response: Any) -> None:
            await context.write(verify_response_to_wire(response))

        with self._telemetry.trace(context) as span:
            await serve_stream(request_iterator, verify_request_from_wire, partial(self._open, span), send)

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.stop()

    @asynccontextmanager
    async def _open(self, span: Span | None, opening: Open) -> AsyncIterator[VerifySteps]:
        sequence = await self._engine.open(opening)
        try:
            yield self._telemetry.instrument(VerifySession(self._engine, sequence), opening, span)
        finally:
            self._engine.close(sequence)


async def create_host(config: TargetConfig, start_followers: StartFollowers | None = None) -> Host:
    """Load the model and return a host that serves it, not yet started.

    Args:
        config: Configuration of the replica.
        start_followers: Starts the followers of a sharded model; as child processes by default.

    Raises:
        ConfigError: The certificate cannot be used.
        ModelError: The model is not supported.
    """
    access_policy = service_access_policy(config.security, Identity.of(config.security), ROUTER)
    engine = build_engine(config, None, start_followers or spawn_followers(config))
    await engine.start()
    telemetry = Telemetry(config.telemetry, Role.TARGET.value)
    return host_engine(engine, config.address, access_policy, telemetry)


def host_engine(
    engine: Engine,
    address: str = "127.0.0.1:0",
    access_policy: AccessPolicy | None = None,
    telemetry: Telemetry | None = None,
) -> Host:
    """Return a host for a running engine, not yet started; it stops the engine once it is drained."""
    telemetry = telemetry or silent_telemetry()
    metrics = TargetMetrics(telemetry.registry, engine.load)
    servicer = TargetServicer(engine, StreamTelemetry("target.verify", telemetry.tracer, metrics))

    def register(server: grpc.aio.Server) -> None:
        target_pb2_grpc.add_TargetServicer_to_server(servicer, server)

    service = Service(SERVICE_NAME, register, servicer.close, engine.failure)
    return Host(service, address, access_policy=access_policy, telemetry=telemetry)
