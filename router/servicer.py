"""Public gRPC service: converts requests and responses from and to the wire."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import Message

from flyserve.core.errors import ConfigError, FieldViolation, refuse
from flyserve.core.request import GenerateRequest
from flyserve.core.response import Chunk, Response, join_chunks
from flyserve.core.version import VERSION_HEADER, version_fault
from flyserve.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from flyserve.wire.generation import (
    chunk_to_wire,
    deployment_to_wire,
    request_from_wire,
    response_to_wire,
    text_tokens_to_wire,
)
from router.config import LimitsConfig
from router.cost import cpu_s, num_values, off_loop
from router.service import GenerationService, Header
from services.common.telemetry.tracing import traceparent_in

SERVICE_NAME = "flyserve.v1.Generation"

LIST_LIMITS: Mapping[str, str | int] = {
    "TokenIds.ids": "prompt_characters",
    "GenerateRequest.stop": "stop_strings",
    "SamplingParams.stop_token_ids": "listed_tokens",
    "SamplingParams.logit_bias": "listed_tokens",
    "SpeculationParams.exact_in": 64,
    "Resumption.choices": "choices",
    "ReceivedChoice.token_ids": "max_new_tokens",
    "TokenizeRequest.messages": "items",
}
"""Key of `router.limits`, or a number, by message and field."""


class GenerationServicer(generation_pb2_grpc.GenerationServicer):
    """Serves requests for text over gRPC."""

    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def Info(self, request: common_pb2.InfoRequest, context: Any) -> generation_pb2.DeploymentInfo:
        _check_version(context)
        return deployment_to_wire(await self._service.describe())

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: Any
    ) -> generation_pb2.GenerateResponse:
        chunks: defaultdict[int, list[Chunk]] = defaultdict(list)

        async def collect(chunk: Chunk) -> None:
            chunks[chunk.choice_index].append(chunk)

        _check_version(context)
        trace = traceparent_in(context.invocation_metadata())
        header = await self._service.serve(
            self._request(request), context.time_remaining(), collect, trace, streams=False
        )
        cost_s = _cost_s(request, [chunk for each in chunks.values() for chunk in each])
        return await off_loop(cost_s, lambda: _response(header, chunks))

    # NOTE: a coroutine that writes, not a generator: it is cancelled at the moment when the call ends.
    async def GenerateStream(  # type: ignore[override]
        self, request: generation_pb2.GenerateRequest, context: Any
    ) -> None:
        async def emit(chunk: Chunk) -> None:
            make = partial(chunk_to_wire, chunk)
            await context.write(await off_loop(_cost_s(request, [chunk]), make) if chunk.prompt else make())

        _check_version(context)
        trace = traceparent_in(context.invocation_metadata())
        await self._service.serve(self._request(request), context.time_remaining(), emit, trace)

    def _request(self, wire: generation_pb2.GenerateRequest) -> GenerateRequest:
        check_lists(wire, self._service.limits)
        return request_from_wire(wire)

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, context: Any
    ) -> generation_pb2.TokenizeResponse:
        _check_version(context)
        check_lists(request, self._service.limits)
        if request.messages:
            messages = [{"role": message.role, "content": message.content} for message in request.messages]
            return text_tokens_to_wire(await self._service.texts.tokenize_chat(messages))
        return text_tokens_to_wire(await self._service.texts.tokenize(request.text))


def _check_version(context: Any) -> None:
    """Raise ConfigError for a client of ours whose version does not fit; other clients send none."""
    for key, value in context.invocation_metadata():
        if key == VERSION_HEADER and (fault := version_fault(value)) is not None:
            raise ConfigError(fault)


def _response(header: Header, chunks: dict[int, list[Chunk]]) -> generation_pb2.GenerateResponse:
    """Return a whole response; the chunks are dropped, since freeing many of them takes a while, too."""
    prompt = tuple(token for chunk in chunks.get(0, ()) for token in chunk.prompt)
    warnings = [warning for index in sorted(chunks) for warning in chunks[index][-1].warnings]
    response = Response(
        request_id=header.request_id,
        choices=tuple(join_chunks(index, chunks.pop(index)) for index in sorted(chunks)),
        prompt_tokens=header.prompt_tokens,
        warnings=tuple(dict.fromkeys(warnings)),
        prompt=prompt,
    )
    return response_to_wire(response)


def _cost_s(request: generation_pb2.GenerateRequest, chunks: Sequence[Chunk]) -> float:
    """Return the estimated CPU seconds of converting chunks; streamed ones without a prompt are short."""
    of_prompt = num_values(sum(len(chunk.prompt) for chunk in chunks), request.prompt_logprobs)
    return cpu_s(values=of_prompt + num_values(sum(len(chunk.tokens) for chunk in chunks), request.logprobs))


def check_lists(message: Message, limits: LimitsConfig) -> None:
    """Raise InvalidRequest with the lists and maps of a request that have too many items."""
    refuse(_violations(message, limits, ""))


def _violations(message: Any, limits: LimitsConfig, path: str) -> Iterator[FieldViolation]:
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if not field.is_repeated:
            if field.message_type is not None:
                yield from _violations(value, limits, f"{name}.")
        elif found := _excess(field, len(value), limits):
            yield FieldViolation(name, found)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for index, item in enumerate(value):
                yield from _violations(item, limits, f"{name}[{index}].")


def _excess(field: Any, number: int, limits: LimitsConfig) -> str:
    """Return the description of a list that has too many items, else an empty text."""
    limit = LIST_LIMITS[f"{field.containing_type.name}.{field.name}"]
    most = limit if isinstance(limit, int) else int(getattr(limits, limit))
    key = "" if isinstance(limit, int) else f" (router.limits.{limit})"
    return f"has {number} items, at most {most} are allowed{key}" if number > most else ""
