"""Wrappers for the handlers of gRPC methods."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from fly.errors import InvalidRequest

Coroutine = Callable[[Any, Any], Awaitable[Any]]
Generator = Callable[[Any, Any], AsyncIterator[Any]]
"""Method of the health and reflection services; FlyServe's own streams write to their context instead."""


def wrap_handler(
    handler: Any, coroutine: Callable[[Coroutine], Coroutine], generator: Callable[[Generator], Generator]
) -> Any:
    """Return the handler with its method wrapped by `coroutine` or `generator`, depending on its kind."""
    for kind in ("unary_unary", "unary_stream", "stream_stream"):
        if (method := getattr(handler, kind)) is not None:
            wrap = generator if inspect.isasyncgenfunction(method) else coroutine
            make = getattr(grpc, f"{kind}_rpc_method_handler")
            return make(wrap(method), handler.request_deserializer, handler.response_serializer)
    return handler


def with_late_decoding(handler: Any) -> Any:
    """Return a handler whose method decodes the request, so that undecodable bytes become InvalidRequest.

    NOTE: gRPC decodes a unary request before it calls the method, and sends the text of a decoding error to
        the
    client. The messages of a stream are decoded where they are read.
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

    return wrap_handler(handler._replace(request_deserializer=None), coroutine, generator)


def _decoder(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            raise InvalidRequest.of("request", "is not a message of this method") from None

    return decode
