"""Errors to gRPC status and back: one mapping, one server interceptor, one function for clients."""

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from fly.errors import (
    ConfigError,
    DeadlineExceeded,
    FieldViolation,
    FlyServeError,
    InvalidRequest,
    ModelError,
    NotReady,
    Overloaded,
    Unauthenticated,
)
from services.common.handlers import Coroutine, Generator, with_late_decoding, wrap_handler

logger = logging.getLogger(__name__)

_CODES: dict[type[FlyServeError], int] = {
    InvalidRequest: code_pb2.INVALID_ARGUMENT,
    NotReady: code_pb2.UNAVAILABLE,
    Overloaded: code_pb2.RESOURCE_EXHAUSTED,
    Unauthenticated: code_pb2.UNAUTHENTICATED,
    DeadlineExceeded: code_pb2.DEADLINE_EXCEEDED,
    ConfigError: code_pb2.FAILED_PRECONDITION,
    ModelError: code_pb2.FAILED_PRECONDITION,
}


def to_status(error: Exception) -> status_pb2.Status:
    """The status of an error; anything unknown is INTERNAL with an id to look up in the log."""
    code = _CODES.get(type(error)) if isinstance(error, FlyServeError) else None
    if code is None:
        error_id = uuid.uuid4().hex[:12]
        logger.error("internal error %s", error_id, exc_info=error)
        return status_pb2.Status(code=code_pb2.INTERNAL, message=f"internal error {error_id}")
    return status_pb2.Status(code=code, message=str(error), details=_details(error))


def _details(error: Exception) -> list[any_pb2.Any]:
    if isinstance(error, InvalidRequest):
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=v.field, description=v.description)
            for v in error.violations
        ]
        return [_packed(error_details_pb2.BadRequest(field_violations=violations))]
    if isinstance(error, Overloaded):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(error.retry_after_s * 1000))
        return [_packed(error_details_pb2.RetryInfo(retry_delay=delay))]
    return []


def _packed(detail: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def from_rpc_error(error: grpc.aio.AioRpcError) -> FlyServeError:
    """The error that a server meant; a broken or rejected connection is NotReady."""
    message = error.details() or error.code().name
    match error.code():
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InvalidRequest(*(_violations(error) or [FieldViolation("request", message)]))
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(message, _retry_after_s(error))
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return Unauthenticated(message)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(message)
        case _:
            return NotReady(message)


def _decoded(error: grpc.aio.AioRpcError) -> status_pb2.Status | None:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return status_pb2.Status.FromString(value)
    return None


def _violations(error: grpc.aio.AioRpcError) -> list[FieldViolation]:
    bad_request = error_details_pb2.BadRequest()
    if (status := _decoded(error)) and any(detail.Unpack(bad_request) for detail in status.details):
        return [FieldViolation(v.field, v.description) for v in bad_request.field_violations]
    return []


def _retry_after_s(error: grpc.aio.AioRpcError) -> float:
    retry = error_details_pb2.RetryInfo()
    if (status := _decoded(error)) and any(detail.Unpack(retry) for detail in status.details):
        return float(retry.retry_delay.ToMilliseconds()) / 1000
    return 1.0


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """Ends every call whose handler raises with the error's status, never with the exception's text."""

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
    """For what answers by a stream: the stream's head goes first, by itself.

    NOTE: gRPC sends it with the first message else, and where that write is given up, as at a deadline, it
    can say no more: the call would never end for its client.
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
    """For the health and reflection services; our own streams write through their context."""

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
    status = rpc_status.to_status(to_status(error))
    context.set_trailing_metadata(status.trailing_metadata)
    await context.abort(status.code, status.details)
