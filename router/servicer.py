"""Public gRPC service: converts requests and responses from and to the wire."""

import asyncio
from collections import defaultdict
from typing import Any

from fly.response import Chunk, Response, join_chunks
from protos.flyserve.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from protos.wire.generation import (
    chunk_to_wire,
    deployment_to_wire,
    request_from_wire,
    response_to_wire,
    text_tokens_to_wire,
)
from router.service import GenerationService
from services.common.telemetry.tracing import traceparent_in

SERVICE_NAME = "flyserve.v1.Generation"

_MAX_INLINE_PROMPT_TOKENS = 512
"""Tokens of a prompt above which they are converted off the event loop."""


class GenerationServicer(generation_pb2_grpc.GenerationServicer):
    """Serves requests for text over gRPC."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> generation_pb2.DeploymentInfo:
        return deployment_to_wire(await self._service.describe())

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Any
    ) -> generation_pb2.GenerateResponse:
        chunks: defaultdict[int, list[Chunk]] = defaultdict(list)

        async def collect(chunk: Chunk) -> None:
            chunks[chunk.choice_index].append(chunk)

        trace = traceparent_in(context.invocation_metadata())
        header = await self._service.serve(
            request_from_wire(request), context.time_remaining(), collect, trace, streams=False
        )
        warnings = [warning for index in sorted(chunks) for warning in chunks[index][-1].warnings]
        response = Response(
            request_id=header.request_id,
            choices=tuple(join_chunks(index, chunks[index]) for index in sorted(chunks)),
            prompt_tokens=header.prompt_tokens,
            warnings=tuple(dict.fromkeys(warnings)),
            prompt=tuple(token for chunk in chunks[0] for token in chunk.prompt),
        )
        if len(response.prompt) > _MAX_INLINE_PROMPT_TOKENS:
            return await asyncio.to_thread(response_to_wire, response)
        return response_to_wire(response)

    # NOTE: a coroutine that writes, not a generator: it is cancelled at the moment when the call ends.
    async def GenerateStream(  # type: ignore[override]
        self, request: generation_pb2.GenerateRequest, context: Any
    ) -> None:
        async def emit(chunk: Chunk) -> None:
            is_long = len(chunk.prompt) > _MAX_INLINE_PROMPT_TOKENS
            await context.write(
                await asyncio.to_thread(chunk_to_wire, chunk) if is_long else chunk_to_wire(chunk)
            )

        trace = traceparent_in(context.invocation_metadata())
        await self._service.serve(request_from_wire(request), context.time_remaining(), emit, trace)

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, context: Any
    ) -> generation_pb2.TokenizeResponse:
        if request.messages:
            messages = [{"role": message.role, "content": message.content} for message in request.messages]
            return text_tokens_to_wire(await self._service.tokenize_chat(messages))
        return text_tokens_to_wire(await self._service.tokenize(request.text))
