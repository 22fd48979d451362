"""Errors to HTTP: status and OpenAI's error object."""

import logging
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from flyserve.core.errors import (
    MOST_ERROR_BYTES,
    DeadlineExceeded,
    FieldViolation,
    FlyServeError,
    InternalError,
    InvalidRequest,
    NotReady,
    Overloaded,
    Unauthenticated,
    cut,
)

logger = logging.getLogger(__name__)

INVALID = "invalid_request_error"


class Rejected(FlyServeError):
    """Error of HTTP itself: an unknown path or model, or an unreadable body.

    Attributes:
        status: HTTP status of the response.
        param: Field or header that caused the error, or None.
        code: OpenAI's name of the error, or None.
        headers: Further headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """Error as the client receives it."""

    status: int
    message: str
    kind: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> dict[str, dict[str, str | None]]:
        """OpenAI's error object."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.content, self.status, dict(self.headers))


def reply_to(error: BaseException) -> ErrorReply:
    """Return the reply to an error; an unknown error is status 500 with an id to look up in the log.

    No text of a client makes it long: the message in JSON has at most 16 kB.
    """
    reply = _reply_to(error)
    return replace(reply, message=cut(reply.message, MOST_ERROR_BYTES))


def _reply_to(error: BaseException) -> ErrorReply:
    match error:
        case Rejected():
            kind = INVALID if error.status < 500 else "server_error"
            return ErrorReply(error.status, str(error), kind, error.param, error.code, error.headers)
        case InvalidRequest():
            return _invalid(error)
        case Unauthenticated():
            scheme = {"WWW-Authenticate": "Bearer"}
            return ErrorReply(401, str(error), "authentication_error", code="invalid_api_key", headers=scheme)
        case Overloaded():
            after = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
            return ErrorReply(429, str(error), "rate_limit_error", code="overloaded", headers=after)
        case NotReady():
            return ErrorReply(503, str(error), "server_error", code="not_ready", headers={"Retry-After": "1"})
        case DeadlineExceeded():
            return ErrorReply(504, str(error), "server_error", code="deadline_exceeded")
        case InternalError():
            return ErrorReply(500, str(error), "server_error", code="internal_error")
        case HTTPException():
            return _of_routing(error)
    error_id = uuid.uuid4().hex[:12]
    logger.error("internal error %s", error_id, exc_info=error)
    return ErrorReply(500, f"internal error {error_id}", "server_error", code="internal_error")


def renamed(error: InvalidRequest, names: Mapping[str, str]) -> InvalidRequest:
    """Return the error with the HTTP request's own names of fields.

    `names` has them by the beginning of the dotted path in `GenerateRequest`.
    """
    return InvalidRequest(*(replace(v, field=_renamed(v.field, names)) for v in error.violations))


def _renamed(path: str, names: Mapping[str, str]) -> str:
    plain = path.removeprefix("sampling.")
    for name, own in names.items():
        if plain == name or plain.startswith((f"{name}.", f"{name}[")):
            return own + plain.removeprefix(name).removeprefix(".ids")
    return plain


def renamed_text(warning: str, names: Mapping[str, str]) -> str:
    """Return a warning, which begins with a field, with the HTTP request's own names of fields."""
    listed, space, rest = warning.partition(" ")
    return _renamed(listed, names) + space + rest.replace("sampling.", "")


def _invalid(error: InvalidRequest) -> ErrorReply:
    first = error.violations[0] if error.violations else FieldViolation("", "")
    return ErrorReply(400, str(error), INVALID, first.field or None, first.reason)


def _of_routing(error: HTTPException) -> ErrorReply:
    messages = {404: "no such path", 405: "this path has other methods"}
    message = messages.get(error.status_code, error.detail)
    allowed = (error.headers or {}).get("Allow")
    headers = {"Allow": allowed} if allowed else {}
    said = f"{message}: {allowed}" if allowed else message
    return ErrorReply(error.status_code, said, INVALID, headers=headers)
