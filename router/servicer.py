"""The public gRPC service: the wire's form of requests and responses."""

from collections import defaultdict
from typing import Any

from protos.flyserve.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from router.codec.generation import request_from_wire
from router.codec.response import info_to_wire, piece_to_wire, response_to_wire
from router.generation.choices import EmitOfChoice
from router.generation.response import Header, Piece
from router.service import GenerationService
from services.common.telemetry.tracing import traceparent_in

SERVICE_NAME = "flyserve.v1.Generation"


class GenerationServicer(generation_pb2_grpc.GenerationServicer):
    """Serves requests for text by gRPC."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> generation_pb2.GenerationInfo:
        return info_to_wire(await self._service.describe())

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Any
    ) -> generation_pb2.GenerateResponse:
        pieces: defaultdict[int, list[Piece]] = defaultdict(list)

        async def collect(index: int, piece: Piece) -> None:
            pieces[index].append(piece)

        wanted = request_from_wire(request)
        trace = traceparent_in(context.invocation_metadata())
        header = await self._service.serve(wanted, context.time_remaining(), lambda header: collect, trace)
        return response_to_wire(header, [pieces[index] for index in sorted(pieces)])

    # A coroutine that writes, not a generator: it is left the moment that the call ends.
    async def GenerateStream(  # type: ignore[override]
        self, request: generation_pb2.GenerateRequest, context: Any
    ) -> None:
        def make_emit(header: Header) -> EmitOfChoice:
            unsent: list[Header] = [header]

            async def emit(index: int, piece: Piece) -> None:
                await context.write(piece_to_wire(index, piece, unsent.pop() if unsent else None))

            return emit

        wanted, trace = request_from_wire(request), traceparent_in(context.invocation_metadata())
        await self._service.serve(wanted, context.time_remaining(), make_emit, trace)

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, context: Any
    ) -> generation_pb2.TokenizeResponse:
        if request.messages:
            messages = [{"role": turn.role, "content": turn.content} for turn in request.messages]
            ids, pieces = await self._service.tokenize_chat(messages)
        else:
            ids, pieces = await self._service.tokenize(request.text)
        return generation_pb2.TokenizeResponse(ids=ids, pieces=pieces)
