"""Errors to gRPC status and back: the only mapping."""

import logging
import re
import uuid
from typing import Any, TypeVar

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from flyserve.core.errors import (
    ConfigError,
    DeadlineExceeded,
    FieldViolation,
    FlyServeError,
    InternalError,
    InvalidRequest,
    ModelError,
    NoGrpcPort,
    NotReady,
    Overloaded,
    Unauthenticated,
    cut,
)

logger = logging.getLogger(__name__)

_NO_CONNECTION = re.compile("handshake|socket closed|reset by peer|SETTINGS", re.IGNORECASE)
"""Found in gRPC's message where a server answers, but not in the protocol that was expected."""

DETAILS = "grpc-status-details-bin"
"""Key of the trailing metadata that carries the status."""

CODES = {code.value[0]: code for code in grpc.StatusCode}
"""The status codes of gRPC by their numbers."""

_MOST_MESSAGE_BYTES = 640
"""Longest message of a status. gRPC sends it twice, and refuses statuses of more than 8 kB."""

_CODES: dict[type[FlyServeError], int] = {
    InvalidRequest: code_pb2.INVALID_ARGUMENT,
    NotReady: code_pb2.UNAVAILABLE,
    Overloaded: code_pb2.RESOURCE_EXHAUSTED,
    Unauthenticated: code_pb2.UNAUTHENTICATED,
    DeadlineExceeded: code_pb2.DEADLINE_EXCEEDED,
    InternalError: code_pb2.INTERNAL,
    ConfigError: code_pb2.FAILED_PRECONDITION,
    NoGrpcPort: code_pb2.FAILED_PRECONDITION,
    ModelError: code_pb2.FAILED_PRECONDITION,
}
D = TypeVar("D", bound=Message)


def to_status(error: Exception) -> status_pb2.Status:
    """Return the status of an error; an unknown one is INTERNAL with an id to look up in the log."""
    code = _CODES.get(type(error)) if isinstance(error, FlyServeError) else None
    if code is None:
        error_id = uuid.uuid4().hex[:12]
        logger.error("internal error %s", error_id, exc_info=error)
        return status_pb2.Status(code=code_pb2.INTERNAL, message=f"internal error {error_id}")
    message = cut(str(error), _MOST_MESSAGE_BYTES)
    return status_pb2.Status(code=code, message=message, details=_details(error))


def _details(error: Exception) -> list[any_pb2.Any]:
    if isinstance(error, InvalidRequest):
        violations = [
            error_details_pb2.BadRequest.FieldViolation(
                field=violation.field, description=violation.description, reason=violation.reason
            )
            for violation in error.violations
        ]
        return [_packed(error_details_pb2.BadRequest(field_violations=violations))]
    if isinstance(error, Overloaded):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(int(error.retry_after_s * 1000))
        return [_packed(error_details_pb2.RetryInfo(retry_delay=delay))]
    return []


def _packed(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def from_rpc_error(error: Any, address: str = "the server", remedy: str = "") -> FlyServeError:
    """Return the error that a server reported to grpc or grpc.aio; NotReady if it does not answer.

    The `address` of the server is used in messages, and the `remedy` in that of one that does not answer.
    """
    code, message = error.code(), error.details() or error.code().name
    match code:
        case grpc.StatusCode.INVALID_ARGUMENT:
            detail = _detail(error, error_details_pb2.BadRequest())
            violations = [
                FieldViolation(wire.field, wire.description, wire.reason or "invalid_value")
                for wire in detail.field_violations
            ]
            return InvalidRequest(*(violations or [FieldViolation("request", message)]))
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "message larger than max" in message:
            return InvalidRequest.of("request", f"is too large, or its response is: {message}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            delay = _detail(error, error_details_pb2.RetryInfo()).retry_delay
            return Overloaded(message, delay.ToMilliseconds() / 1000)
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return Unauthenticated(message)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(message)
        case grpc.StatusCode.FAILED_PRECONDITION:
            return ConfigError(message)
        case grpc.StatusCode.INTERNAL:
            return InternalError(message)
        case grpc.StatusCode.UNAVAILABLE if "Failed parsing HTTP/2" in message:
            return NoGrpcPort(
                f"{address} is no gRPC port; that of a deployment is router.grpc_port, not router.http_port"
            )
        case grpc.StatusCode.UNAVAILABLE if message.startswith(("errors resolving", "DNS resolution failed")):
            return NotReady(f"no host is known by the name of {address}: check the name")
        case grpc.StatusCode.UNAVAILABLE if "failed to connect" in message.lower():
            reason = message.rpartition("last error: ")[2]
            if _NO_CONNECTION.search(reason):
                return NotReady(f"{address} answers, but no connection is made; check tls: {reason}")
            return NotReady(f"nothing answers at {address}{remedy and f'; {remedy}'}")
        case grpc.StatusCode.UNAVAILABLE:
            return NotReady(message)
        case grpc.StatusCode.CANCELLED:
            return NotReady(f"{address} cancelled the call")
    return FlyServeError(f"{code.name}: {message}")


def from_peer_error(error: Any) -> FlyServeError:
    """Return the error that another service of the deployment reported; a fault of its own is NotReady.

    So is one of our own credentials, which are not those of the client whose request it is.
    """
    found = from_rpc_error(error)
    if isinstance(found, Overloaded):
        return Overloaded(str(found), found.retry_after_s or 1.0)
    if isinstance(found, InternalError | InvalidRequest) and not _has_details(error):
        return NotReady(str(found))  # of the connection: gRPC's own errors have no details
    if isinstance(found, InvalidRequest | DeadlineExceeded | InternalError):
        return found
    return NotReady(error.details() or error.code().name)


def from_peer_status(data: bytes) -> FlyServeError:
    """Return the error of a serialized status of another service, as `from_peer_error` does."""
    status, trailing = status_pb2.Status.FromString(data), grpc.aio.Metadata((DETAILS, data))
    code = CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    return from_peer_error(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, status.message))


def _has_details(error: Any) -> bool:
    """Return True if a server of ours set the status."""
    return any(key == DETAILS for key, _ in error.trailing_metadata() or ())


def _detail(error: Any, detail: D) -> D:
    """Return the detail of this type that the status has, or an empty one."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS:
            any(packed.Unpack(detail) for packed in status_pb2.Status.FromString(value).details)
    return detail
