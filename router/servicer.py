"""The public gRPC service: checks, admits, generates, streams."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fly.errors import InvalidRequest
from protos.flyserve.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from router.admission import Admission
from router.clients import Replica, any_replica
from router.codec.generation import info_to_wire, piece_to_wire, request_from_wire, response_to_wire
from router.deadline import Deadline
from router.generation import Emit, Means, generate
from router.request import GenerateRequest, PreparedRequest, SpeculationParams
from router.response import DeploymentInfo, Header, Piece
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
        config = self._means.config
        default = config.speculation
        info = DeploymentInfo(
            target.info,
            None if drafter is None else drafter.info,
            SpeculationParams(
                default.mode.value, default.preset, default.draft_length, sub_drafter=default.sub_drafter
            ),
            config.limits.max_new_tokens,
            config.limits.draft_length,
        )
        return info_to_wire(info)

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Any
    ) -> generation_pb2.GenerateResponse:
        pieces: list[Piece] = []

        async def collect(piece: Piece) -> None:
            pieces.append(piece)

        header = await self._serve(request, context, lambda header: collect)
        ending = pieces[-1].ending
        assert ending is not None
        return response_to_wire(header, pieces, ending)

    # A coroutine that writes, not a generator: it is left the moment that the call ends.
    async def GenerateStream(  # type: ignore[override]
        self, request: generation_pb2.GenerateRequest, context: Any
    ) -> None:
        def make_emit(header: Header) -> Emit:
            unsent: list[Header] = [header]

            async def emit(piece: Piece) -> None:
                await context.write(piece_to_wire(piece, unsent.pop() if unsent else None))

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
        make_emit: Callable[[Header], Emit],
    ) -> Header:
        """Checks, admits and generates one request."""
        clock = self._means.clock
        started, deadline = clock.now(), Deadline(clock, context.time_remaining())
        request = await self._prepare(request_from_wire(wire))
        header = Header(request.request_id, len(request.prompt_ids))
        async with self._admission.place():
            await generate(self._means, request, started, deadline, make_emit(header))
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
