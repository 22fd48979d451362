"""A call's status to the error that the server meant; and what a broken stream leaves."""

from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

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
from flyserve.types import Response

D = TypeVar("D", bound=Message)


class StreamBroken(FlyServeError):
    """A stream broke in mid-response, and the rest cannot be had as it would have been.

    Attributes:
        received: What came before; a choice that was cut short has no finish reason.
    """

    def __init__(self, message: str, received: Response) -> None:
        self.received = received
        super().__init__(message, received)

    def __str__(self) -> str:
        return str(self.args[0])


def from_rpc_error(error: Any, address: str) -> FlyServeError:
    """The error that the server at `address` meant; NotReady where it does not answer.

    Args:
        error: Of a call of grpc or of grpc.aio.
        address: For messages.
    """
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
        case grpc.StatusCode.CANCELLED:
            return NotReady(f"{address} gave the call up")
    return FlyServeError(f"{code.name}: {message}")


def _detail(error: Any, detail: D) -> D:
    """The detail of this type that the status carries, or an empty one."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            any(packed.Unpack(detail) for packed in status_pb2.Status.FromString(value).details)
    return detail
