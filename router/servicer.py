"""The public gRPC service: checks, admits, generates, streams."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from fly.errors import InvalidRequest
from protos.flyserve.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from router.admission import Admission
from router.choices import EmitOfChoice, generate_choices
from router.clients import Replica, any_replica
from router.codec.generation import request_from_wire
from router.codec.response import info_to_wire, piece_to_wire, response_to_wire
from router.deadline import Deadline
from router.deployment_info import describe
from router.generation import Means
from router.request import GenerateRequest, PreparedRequest
from router.response import Header, Piece
from router.tokenizer import is_slow_to_encode
from router.validation import prepare

T = TypeVar("T")

SERVICE_NAME = "flyserve.v1.Generation"


class GenerationServicer(generation_pb2_grpc.GenerationServicer):
    """Serves requests for text."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._admission = Admission(means.config.max_concurrent, means.config.max_queued)

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> generation_pb2.GenerationInfo:
        target, drafter = await self._paired()
        return info_to_wire(describe(target.info, drafter.info if drafter else None, self._means.config))

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Any
    ) -> generation_pb2.GenerateResponse:
        pieces: defaultdict[int, list[Piece]] = defaultdict(list)

        async def collect(index: int, piece: Piece) -> None:
            pieces[index].append(piece)

        header = await self._serve(request, context, lambda header: collect)
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

        await self._serve(request, context, make_emit)

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, context: Any
    ) -> generation_pb2.TokenizeResponse:
        limit = self._means.config.limits.prompt_characters
        if len(request.text) > limit:
            raise InvalidRequest.of("text", f"has {len(request.text)} characters, at most {limit}")
        ids = await _off_loop_if_long(request.text, lambda: self._means.tokenizer.encode(request.text))
        return generation_pb2.TokenizeResponse(ids=ids, pieces=self._means.tokenizer.pieces(ids))

    async def close(self) -> None:
        """Lets go of every replica."""
        await self._means.fleet.close()

    async def _serve(
        self,
        wire: generation_pb2.GenerateRequest,
        context: Any,
        make_emit: Callable[[Header], EmitOfChoice],
    ) -> Header:
        """Checks, admits and generates one request."""
        clock = self._means.clock
        started, deadline = clock.now(), Deadline(clock, context.time_remaining())
        request = await self._prepare(request_from_wire(wire))
        header = Header(request.request_id, len(request.prompt_ids))
        async with self._admission.place():
            await generate_choices(self._means, request, started, deadline, make_emit(header))
        return header

    async def _prepare(self, request: GenerateRequest) -> PreparedRequest:
        means, (target, _) = self._means, await self._paired()

        def prepared() -> PreparedRequest:
            tokenizer = means.tokenizer
            return prepare(request, tokenizer.encode, tokenizer.eos_ids, target.info, means.config)

        return await _off_loop_if_long(request.prompt, prepared)

    async def _paired(self) -> tuple[Replica, Replica | None]:
        """A target and a drafter for what they serve; waits for a target for a while."""
        fleet = self._means.fleet
        await fleet.targets.wait(any_replica, self._means.config.replica_wait_s)
        return fleet.paired()


async def _off_loop_if_long(text: str | tuple[int, ...], work: Callable[[], T]) -> T:
    """Does the work in a thread where tokenizing would hold up other requests."""
    if isinstance(text, str) and is_slow_to_encode(text):
        return await asyncio.to_thread(work)
    return work()
