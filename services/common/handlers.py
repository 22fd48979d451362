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
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health

from flyserve.core.errors import InvalidRequest
from flyserve.wire.status import CODES, DETAILS, to_status

Context = grpc.aio.ServicerContext[Any, Any]
Check = Callable[[str, Context], None]
"""Raises Unauthenticated if a call of this method must be rejected."""
HoldBytes = Callable[[int], None]
"""Counts further bytes of a request until it ends; raises Overloaded above a limit."""
Admit = Callable[[str, Context], AbstractContextManager[HoldBytes]]
"""Opens the block of a call of this method; raises Overloaded. A stream of requests counts no bytes."""
Around = Callable[[Context], AbstractAsyncContextManager[HoldBytes]]
"""Opens the block in which the request of a call is read and its method runs."""
Decode = Callable[[Any], Any]
Receive = Callable[[Any, Context, HoldBytes], Awaitable[Any]]
"""Returns the argument of a method: its stream of requests, or its only request once that was received."""
_REQUEST_S = 30.0
"""Time in which the request of a call must arrive; a stream of requests has no limit."""


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Interceptor that checks and admits each call, and ends a call that raises with the error's status.

    Health checks are neither: probes and load balancers have no credentials. The status never has an
    exception's text. gRPC gets each method as one with a stream of requests, since it receives a single
    request before it calls a method. So nothing of it is received before the call is admitted, except what
    the window of HTTP/2 holds.
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
        async def around(context: Context) -> AsyncIterator[HoldBytes]:
            async with _guard(context):
                if handler.response_streaming:
                    # NOTE: gRPC otherwise sends it with the first message. If that write is cancelled, as at
                    # a deadline, gRPC can no longer send the status, and the call never ends for its client.
                    await context.send_initial_metadata(())
                with self._admitted(method, context) as hold:
                    yield hold

        return _wrap_handler(handler, around)

    def _admitted(self, method: str, context: Context) -> AbstractContextManager[HoldBytes]:
        if method.startswith(f"/{health.SERVICE_NAME}/"):
            return nullcontext(_hold_nothing)
        if self._check is not None:
            self._check(method, context)
        return nullcontext(_hold_nothing) if self._admit is None else self._admit(method, context)


def _hold_nothing(num_bytes: int) -> None:
    pass


def _wrap_handler(handler: Any, around: Around) -> Any:
    """Return the handler with its method inside the block of `around`.

    NOTE: gRPC would send the text of a decoding error to the client, so a single request is decoded here. The
    messages of a stream are decoded where they are read.
    """
    decode = _decoder(handler.request_deserializer)
    method = next(filter(None, (getattr(handler, kind) for kind in _KINDS)))
    wrap = _wrap_generator if inspect.isasyncgenfunction(method) else _wrap_coroutine
    responses = "stream" if handler.response_streaming else "unary"
    make = getattr(grpc, f"stream_{responses}_rpc_method_handler")
    if handler.request_streaming:
        return make(wrap(method, around, _all_requests), decode, handler.response_serializer)
    return make(wrap(method, around, partial(_only_request, decode)), None, handler.response_serializer)


_KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def _wrap_coroutine(method: Any, around: Around, receive: Receive) -> Any:
    async def call(requests: Any, context: Context) -> Any:
        async with around(context) as hold:
            return await method(await receive(requests, context, hold), context)

    return call


def _wrap_generator(method: Any, around: Around, receive: Receive) -> Any:
    """Wrap a method that yields its responses; those of the public services write to their context."""

    async def call(requests: Any, context: Context) -> AsyncIterator[Any]:
        async with around(context) as hold:
            async for response in method(await receive(requests, context, hold), context):
                yield response

    return call


async def _all_requests(requests: Any, context: Context, hold: HoldBytes) -> Any:
    return requests


async def _only_request(decode: Decode, requests: Any, context: Any, hold: HoldBytes) -> Any:
    """Receive the request of a call that has one, and count its bytes before it is decoded."""
    try:
        async with asyncio.timeout(_REQUEST_S):
            request = await context.read()
    except TimeoutError:
        raise InvalidRequest.of("request", f"did not arrive within {_REQUEST_S:g} s") from None
    if request is grpc.aio.EOF:
        raise InvalidRequest.of("request", "is missing")
    hold(len(request))
    return decode(request)


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
