"""A call's status to the error that the server meant."""

from typing import TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from fly.errors import (
    ConfigError,
    DeadlineExceeded,
    FieldViolation,
    FlyServeError,
    InvalidRequest,
    NotReady,
    Overloaded,
    Unauthenticated,
)

D = TypeVar("D", bound=Message)


def from_rpc_error(error: grpc.RpcError, address: str) -> FlyServeError:
    """The error that the server at `address` meant; NotReady where it does not answer."""
    code, message = error.code(), error.details() or error.code().name
    match code:
        case grpc.StatusCode.INVALID_ARGUMENT:
            detail = _detail(error, error_details_pb2.BadRequest())
            violations = [FieldViolation(v.field, v.description) for v in detail.field_violations]
            return InvalidRequest(*(violations or [FieldViolation("request", message)]))
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            delay = _detail(error, error_details_pb2.RetryInfo()).retry_delay
            return Overloaded(message, delay.ToMilliseconds() / 1000)
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return Unauthenticated(message)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(message)
        case grpc.StatusCode.FAILED_PRECONDITION:
            return ConfigError(message)
        case grpc.StatusCode.UNAVAILABLE if "failed to connect" in message.lower():
            return NotReady(f"nothing answers at {address}")
        case grpc.StatusCode.UNAVAILABLE:
            return NotReady(message)
    return FlyServeError(f"{code.name}: {message}")


def _detail(error: grpc.RpcError, detail: D) -> D:
    """The detail of this type that the status carries, or an empty one."""
    status = rpc_status.from_call(error)
    if status is not None:
        any(packed.Unpack(detail) for packed in status.details)
    return detail
