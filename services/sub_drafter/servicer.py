"""The gRPC service of a sub-drafter that guesses by look-up."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from fly.messages import Load, ModelInfo, Open, Role
from fly.version import VERSION
from protos.flyserve.v1 import common_pb2, drafter_pb2_grpc
from services.common.codec.drafter import draft_request_from_wire, draft_response_to_wire
from services.common.codec.shared import info_to_wire
from services.common.host import Host, Service
from services.common.stream_server import serve_stream
from services.sub_drafter.config import SubDrafterConfig
from services.sub_drafter.engines import build_engine
from services.sub_drafter.session import LookupSession

SERVICE_NAME = "flyserve.v1.Drafter"


class SubDrafterServicer(drafter_pb2_grpc.DrafterServicer):
    """Serves look-up sessions."""

    def __init__(self, config: SubDrafterConfig) -> None:
        self._config = config
        self._engine = build_engine(config)
        self._num_open = 0

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
            kv_capacity=self._config.memory_tokens if self._config.engine == "suffix" else 0,
            version=VERSION,
        )
        load = Load(self._num_open, kv_used=self._engine.memory_tokens, kv_capacity=info.kv_capacity)
        return info_to_wire(info, load)

    # A coroutine that writes, not a generator: its `finally` runs the moment that the call ends.
    async def Draft(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        async def send(answer: Any) -> None:
            await context.write(draft_response_to_wire(answer))

        await serve_stream(request_iterator, draft_request_from_wire, self._open, send)

    async def close(self) -> None:
        """Its memory goes with it."""

    @asynccontextmanager
    async def _open(self, opening: Open) -> AsyncIterator[LookupSession]:
        lookup = self._engine.open(opening)
        session = LookupSession(lookup, opening.prompt_length, self._config.max_tokens)
        self._num_open += 1
        try:
            yield session
        finally:
            session.close()
            self._num_open -= 1


async def create_host(config: SubDrafterConfig, credentials: grpc.ServerCredentials | None = None) -> Host:
    """A host that serves this configuration, not yet started."""
    servicer = SubDrafterServicer(config)

    def register(server: grpc.aio.Server) -> None:
        drafter_pb2_grpc.add_DrafterServicer_to_server(servicer, server)

    return Host(Service(SERVICE_NAME, register, servicer.close), config.address, credentials)
