"""Handlers of gRPC methods, with something done around each call."""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

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
