"""Server interceptor that turns exceptions into gRPC status."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from protos.wire.status import DETAILS, to_status
from services.common.handlers import Coroutine, Generator, with_late_decoding, wrap_handler

_CODES = {code.value[0]: code for code in grpc.StatusCode}


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Interceptor that ends a call that raises with the error's status, never with the exception's text."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        guard = _guard_stream if handler.response_streaming else _guard_coroutine
        return wrap_handler(with_late_decoding(handler), guard, _guard_generator)


def _guard_stream(method: Coroutine) -> Coroutine:
    """Guard a method that streams its response: send the initial metadata first, in a write of its own.

    NOTE: gRPC otherwise sends it with the first message. If that write is cancelled, as at a deadline, gRPC
    can no longer send the status, and the call never ends for its client.
    """
    guarded = _guard_coroutine(method)

    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await context.send_initial_metadata(())
        return await guarded(request, context)

    return call


def _guard_coroutine(method: Coroutine) -> Coroutine:
    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await method(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error)

    return call


def _guard_generator(method: Generator) -> Generator:
    """Guard a method of the health or reflection service; our own streams write through their context."""

    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async for response in method(request, context):
                yield response
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _abort(context, error)

    return call


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> None:
    status = to_status(error)
    context.set_trailing_metadata(((DETAILS, status.SerializeToString()),))
    await context.abort(_CODES[status.code], status.message)
