"""The gRPC service of a sub-drafter with a look-up engine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from fly.messages import Load, ModelInfo, Open, Role
from fly.version import VERSION
from protos.flyserve.v1 import common_pb2, drafter_pb2_grpc
from protos.wire.streams import draft_request_from_wire, draft_response_to_wire, info_to_wire
from services.common.host import Host, Service
from services.common.security.access_policy import service_access_policy
from services.common.security.identity import Identity, certificate_name
from services.common.stream_server import serve_stream
from services.common.telemetry.instrumented_stream import DraftSteps, StreamTelemetry
from services.common.telemetry.process import Telemetry
from services.common.telemetry.tracing import Span
from services.sub_drafter.config import SubDrafterConfig
from services.sub_drafter.engines import build_engine
from services.sub_drafter.metrics import SubDrafterMetrics
from services.sub_drafter.session import LookupSession

SERVICE_NAME = "flyserve.v1.Drafter"


class SubDrafterServicer(drafter_pb2_grpc.DrafterServicer):
    """Look-up sessions of one engine."""

    def __init__(self, config: SubDrafterConfig, telemetry: Telemetry) -> None:
        self._config = config
        self._engine = build_engine(config)
        self._num_open = 0
        metrics = SubDrafterMetrics(telemetry.registry, self._load)
        self._telemetry = StreamTelemetry(f"{Role.SUB_DRAFTER.value}.draft", telemetry.tracer, metrics)

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> common_pb2.InfoResponse:
        info = ModelInfo(
            role=Role.SUB_DRAFTER,
            model_id=self._config.engine,
            weight_fingerprint="",
            architecture=self._config.engine,
            token_map_hash="",
            vocab_size=0,
            context_length=self._config.max_tokens,
            dtype="",
            shards=1,
            kv_capacity=self._engine.response_cache_capacity,
            version=VERSION,
        )
        return info_to_wire(info, self._load())

    # NOTE: a coroutine that writes, not a generator: its `finally` runs as soon as the call ends.
    async def Draft(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        async def send(response: Any) -> None:
            await context.write(draft_response_to_wire(response))

        with self._telemetry.trace(context) as span:
            await serve_stream(request_iterator, draft_request_from_wire, partial(self._open, span), send)

    async def close(self) -> None:
        """Do nothing: the cache is freed with the process."""

    def _load(self) -> Load:
        return Load(
            sequences=self._num_open,
            kv_used=self._engine.response_cache_tokens,
            kv_capacity=self._engine.response_cache_capacity,
        )

    @asynccontextmanager
    async def _open(self, span: Span | None, opening: Open) -> AsyncIterator[DraftSteps]:
        lookup = self._engine.open(opening)
        session = LookupSession(
            lookup=lookup, prompt_length=opening.prompt_length, max_tokens=self._config.max_tokens
        )
        self._num_open += 1
        try:
            yield self._telemetry.instrument(session, opening, span)
        finally:
            session.close()
            self._num_open -= 1


async def create_host(config: SubDrafterConfig) -> Host:
    """Return a host that serves this configuration, not yet started.

    Raises:
        ConfigError: The certificate is invalid.
    """
    access_policy = service_access_policy(
        config.security, Identity.of(config.security), certificate_name(Role.DRAFTER)
    )
    telemetry = Telemetry(config.telemetry, Role.SUB_DRAFTER.value)
    servicer = SubDrafterServicer(config, telemetry)

    def register(server: grpc.aio.Server) -> None:
        drafter_pb2_grpc.add_DrafterServicer_to_server(servicer, server)

    service = Service(SERVICE_NAME, register, servicer.close)
    return Host(service, config.address, access_policy=access_policy, telemetry=telemetry)
