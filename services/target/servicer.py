"""The gRPC service of a target replica: its streams and their metrics."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from flyserve.core.messages import Extend, Load, Opened, Queued, Role, Verification, VerifyStep
from flyserve.v1 import common_pb2, target_pb2_grpc
from flyserve.wire.batches import VERIFY
from flyserve.wire.streams import info_to_wire, verify_request_from_wire, verify_response_to_wire
from services.common.blocking import in_daemon_thread
from services.common.host import Host, Service
from services.common.security.access_policy import AccessPolicy, service_access_policy
from services.common.security.identity import ROUTER, Identity
from services.common.shared_stream.server import Send, SharedStreams
from services.common.telemetry.instrumented_stream import StreamTelemetry
from services.common.telemetry.process import Telemetry
from services.engine.config import StartFollowers
from services.engine.engine import Engine
from services.engine.factory import build_engine
from services.engine.interface import TargetEngine
from services.engine.metrics import EngineMetrics, register_model
from services.engine.sharding.follower import spawn_followers
from services.target.builtin import BuiltinTarget
from services.target.config import AnyTargetConfig, TargetConfig


class TargetMetrics(EngineMetrics[Verification]):
    """The metrics of a target."""

    def __init__(self, registry: CollectorRegistry, load: Callable[[], Load]) -> None:
        """Register the metrics; `load` is called when Prometheus scrapes."""
        super().__init__(registry, Role.TARGET, load)
        self._verified = Counter(
            "flyserve_verified_positions_total", "Positions that the target scored.", registry=registry
        )

    def record_step(self, answer: Verification, seconds: float) -> None:
        super().record_step(answer, seconds)
        self._verified.inc(len(answer.choices))


SERVICE_NAME = "flyserve.v1.Target"


class TargetServicer(target_pb2_grpc.TargetServicer):
    """Serves verification streams from one engine."""

    def __init__(
        self, engine: TargetEngine, telemetry: StreamTelemetry[VerifyStep | Extend, Verification]
    ) -> None:
        self.streams = SharedStreams(VERIFY, self._serve)
        self._engine = engine
        self._telemetry = telemetry

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        return info_to_wire(self._engine.info, self._engine.load())

    async def VerifyBatches(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        await self.streams.serve(request_iterator, context)

    async def _serve(self, requests: AsyncIterator[Any], send: Send) -> None:
        """Serve one sequence."""

        async def report(notice: Queued | Opened) -> None:
            await send(verify_response_to_wire(notice))

        open_session = partial(self._engine.open, report=report)
        await self._telemetry.serve(
            requests, send, verify_request_from_wire, open_session, verify_response_to_wire
        )

    async def close(self) -> None:
        """Stop the engine."""
        await self._engine.stop()


async def create_host(config: AnyTargetConfig, start_followers: StartFollowers | None = None) -> Host:
    """Load the model and return a host that serves it, not yet started.

    `start_followers` starts the followers of a sharded model; child processes by default.

    Raises:
        ConfigError: The certificate, or an argument of vLLM, cannot be used.
        ModelError: The model is not supported, or vLLM is not installed.
    """
    access_policy = service_access_policy(config.security, Identity.of(config.security), ROUTER)
    engine = await _start_engine(config, start_followers)
    telemetry = Telemetry(config.telemetry, Role.TARGET.value)
    return host_target(engine, config.address, access_policy, telemetry)


async def _start_engine(config: AnyTargetConfig, start_followers: StartFollowers | None) -> TargetEngine:
    if start_followers is None and isinstance(config, TargetConfig):
        start_followers = spawn_followers(config)
    engine = await in_daemon_thread(lambda: build_engine(config, None, start_followers))
    await engine.start()
    return BuiltinTarget(engine)


def host_engine(engine: Engine, telemetry: Telemetry | None = None) -> Host:
    """Return a host for a running builtin or simulated engine, as `host_target` does."""
    return host_target(BuiltinTarget(engine), telemetry=telemetry)


def host_target(
    engine: TargetEngine,
    address: str = "127.0.0.1:0",
    access_policy: AccessPolicy | None = None,
    telemetry: Telemetry | None = None,
) -> Host:
    """Return a host for a running engine, not yet started; it stops the engine once it is drained."""
    telemetry = telemetry or Telemetry()
    register_model(telemetry.registry, engine.info)
    metrics = TargetMetrics(telemetry.registry, engine.load)
    servicer = TargetServicer(engine, StreamTelemetry("target.verify", telemetry.tracer, metrics))

    register = partial(target_pb2_grpc.add_TargetServicer_to_server, servicer)
    service = Service(SERVICE_NAME, register, servicer.close, engine.failure, servicer.streams.drain)
    return Host(service, address, access_policy=access_policy, telemetry=telemetry)
