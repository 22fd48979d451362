"""Handlers of gRPC methods, with something done around each call."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fly.errors import InvalidRequest

Coroutine = Callable[[Any, Any], Awaitable[Any]]
Generator = Callable[[Any, Any], AsyncIterator[Any]]
"""The health and reflection services; our own streams write through their context."""


def around(
    handler: Any, coroutine: Callable[[Coroutine], Coroutine], generator: Callable[[Generator], Generator]
) -> Any:
    """The same handler, by its kind, with its method replaced by what is made of it."""
    for kind in ("unary_unary", "unary_stream", "stream_stream"):
        if (method := getattr(handler, kind)) is not None:
            change = generator if inspect.isasyncgenfunction(method) else coroutine
            make = getattr(grpc, f"{kind}_rpc_method_handler")
            return make(change(method), handler.request_deserializer, handler.response_serializer)
    return handler


def decoding_last(handler: Any) -> Any:
    """The same handler, whose method decodes the request: so bytes that are no message are rejected there.

    NOTE: gRPC decodes the request of a call before it calls anybody, and where that fails tells the client
    the exception's text; the messages of a stream it decodes where they are read.
    """
    if handler.request_streaming:
        return handler._replace(request_deserializer=_decoder(handler.request_deserializer))
    decode = _decoder(handler.request_deserializer)

    def coroutine(method: Coroutine) -> Coroutine:
        async def call(request: Any, context: Any) -> Any:
            return await method(decode(request), context)

        return call

    def generator(method: Generator) -> Generator:
        async def call(request: Any, context: Any) -> AsyncIterator[Any]:
            async for response in method(decode(request), context):
                yield response

        return call

    return around(handler._replace(request_deserializer=None), coroutine, generator)


def _decoder(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            raise InvalidRequest.of("request", "is not a message of this method") from None

    return decode
