"""Wrap the handlers of gRPC methods: check each call, and turn its errors into gRPC status."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health

from flyserve.core.errors import InvalidRequest
from flyserve.wire.status import CODES, DETAILS, to_status

Context = grpc.aio.ServicerContext[Any, Any]
Check = Callable[[str, Context], None]
"""Raises Unauthenticated if a call of this method must be rejected."""
Admit = Callable[[str, int], AbstractContextManager[None]]
"""Opens the block of a call of this method, whose request has this number of bytes; raises Overloaded.

The bytes of a stream of requests count as 0.
"""
Around = Callable[[Context, int], AbstractAsyncContextManager[None]]
"""Opens the block in which a method runs; takes the number of its request's bytes."""
Decode = Callable[[Any], Any]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Interceptor that checks and admits each call, and ends a call that raises with the error's status.

    Health checks are neither: probes and load balancers have no credentials. The status never has an
    exception's text.
    """

    def __init__(self, check: Check | None = None, admit: Admit | None = None) -> None:
        """Check each call by `check`, then run it in the block of `admit`; None accepts every call."""
        self._check = check
        self._admit = admit

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler, method = await continuation(handler_call_details), handler_call_details.method
        if handler is None:
            return handler

        @asynccontextmanager
        async def around(context: Context, num_bytes: int) -> AsyncIterator[None]:
            if handler.response_streaming:
                # NOTE: gRPC otherwise sends it with the first message. If that write is cancelled, as at a
                # deadline, gRPC can no longer send the status, and the call never ends for its client.
                await context.send_initial_metadata(())
            async with _guard(context):
                with self._admitted(method, context, num_bytes):
                    yield

        decode = _decoder(handler.request_deserializer)
        if handler.request_streaming:
            return _wrap_handler(handler._replace(request_deserializer=decode), around)
        # NOTE: gRPC would decode a unary request before it calls the method, and send the text of a decoding
        # error to the client. The messages of a stream are decoded where they are read.
        return _wrap_handler(handler._replace(request_deserializer=None), around, decode)

    def _admitted(self, method: str, context: Context, num_bytes: int) -> AbstractContextManager[None]:
        if method.startswith(f"/{health.SERVICE_NAME}/"):
            return nullcontext()
        if self._check is not None:
            self._check(method, context)
        return nullcontext() if self._admit is None else self._admit(method, num_bytes)


def _wrap_handler(handler: Any, around: Around, decode: Decode = lambda request: request) -> Any:
    """Return the handler with its method inside the block of `around`, which also decodes requests."""
    for kind in ("unary_unary", "unary_stream", "stream_stream"):
        if (method := getattr(handler, kind)) is not None:
            wrap = _wrap_generator if inspect.isasyncgenfunction(method) else _wrap_coroutine
            make = getattr(grpc, f"{kind}_rpc_method_handler")
            wrapped = wrap(method, around, decode)
            return make(wrapped, handler.request_deserializer, handler.response_serializer)
    return handler


def _wrap_coroutine(method: Any, around: Around, decode: Decode) -> Any:
    async def call(request: Any, context: Context) -> Any:
        async with around(context, _num_bytes(request)):
            return await method(decode(request), context)

    return call


def _wrap_generator(method: Any, around: Around, decode: Decode) -> Any:
    """Wrap a method of the health or reflection service; FlyServe's own streams write to their context."""

    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        async with around(context, _num_bytes(request)):
            async for response in method(decode(request), context):
                yield response

    return call


def _num_bytes(request: Any) -> int:
    """Return the length of a request that is not decoded yet; 0 for a stream of requests."""
    return len(request) if isinstance(request, bytes) else 0


def _decoder(deserialize: Callable[[bytes], Any]) -> Decode:
    """Return a decoder that reports undecodable bytes as InvalidRequest."""

    def decode(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            raise InvalidRequest.of("request", "is not a message of this method") from None

    return decode


@asynccontextmanager
async def _guard(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:
        status = to_status(error)
        context.set_trailing_metadata(((DETAILS, status.SerializeToString()),))
        try:
            await context.abort(CODES[status.code], status.message)
        except grpc.aio.InternalError:
            # NOTE: the call has ended, as at its deadline; gRPC, which has not seen that yet, would log it.
            raise asyncio.CancelledError from None
