"""The gRPC service of a sub-drafter: one look-up index per stream."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from fly.known import KnownSequence
from fly.lookup import LookupIndex
from fly.messages import Draft, DraftStep, Load, ModelInfo, Open, Role
from fly.version import VERSION
from protos.flyserve.v1 import common_pb2, drafter_pb2_grpc
from services.common.codec.drafter import draft_request_from_wire, draft_response_to_wire
from services.common.codec.shared import info_to_wire
from services.common.host import Host, Service
from services.common.stream_server import serve_stream
from services.sub_drafter.config import SubDrafterConfig

SERVICE_NAME = "flyserve.v1.Drafter"
_ANY_TOKEN = 1 << 32


class LookupSession:
    """One sequence: what is known of it, and its index."""

    def __init__(self, config: SubDrafterConfig) -> None:
        self._known = KnownSequence(_ANY_TOKEN, config.max_tokens)
        self._index = LookupIndex(config.min_ngram, config.max_ngram)

    async def step(self, step: DraftStep) -> Draft:
        """Takes the update over and looks its end up."""
        unchanged = self._known.apply(step.update)
        self._index.truncate(unchanged)
        self._index.extend(self._known.tokens.ids[unchanged:])
        guess = self._index.guess(step.max_tokens)
        self._known.tokens.extend(guess.tokens)
        self._index.extend(guess.tokens)
        return Draft(
            step.update.step_id,
            guess.tokens,
            match_length=guess.match_length,
            confidence=guess.confidence,
        )


class SubDrafterServicer(drafter_pb2_grpc.DrafterServicer):
    """Serves look-up sessions."""

    def __init__(self, config: SubDrafterConfig) -> None:
        self._config = config
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
            kv_capacity=0,
            version=VERSION,
        )
        return info_to_wire(info, Load(sequences=self._num_open))

    # A coroutine that writes, not a generator: its `finally` runs the moment that the call ends.
    async def Draft(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        async def send(answer: Any) -> None:
            await context.write(draft_response_to_wire(answer))

        await serve_stream(request_iterator, draft_request_from_wire, self._open, send)

    async def close(self) -> None:
        """Holds nothing beyond its streams."""

    @asynccontextmanager
    async def _open(self, opening: Open) -> AsyncIterator[LookupSession]:
        self._num_open += 1
        try:
            yield LookupSession(self._config)
        finally:
            self._num_open -= 1


async def create_host(config: SubDrafterConfig, credentials: grpc.ServerCredentials | None = None) -> Host:
    """A host that serves this configuration, not yet started."""
    servicer = SubDrafterServicer(config)

    def register(server: grpc.aio.Server) -> None:
        drafter_pb2_grpc.add_DrafterServicer_to_server(servicer, server)

    return Host(Service(SERVICE_NAME, register, servicer.close), config.address, credentials)
