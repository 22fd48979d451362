"""Hierarchy of all errors; protos/wire/status.py maps it to gRPC and back."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """Fault of one field.

    Attributes:
        field: Dotted path of the field, such as `sampling.temperature`.
        description: The value found and the limit, such as `is -1.0, must be at least 0`.
        reason: Kind of the fault, for programs.
    """

    field: str
    description: str
    reason: str = "invalid_value"


class FlyServeError(Exception):
    """Base of all errors that are reported to callers."""


class InvalidRequest(FlyServeError):
    """The request breaks a limit; lists each field, the value found and the limit."""

    def __init__(self, *violations: FieldViolation) -> None:
        self.violations = violations
        super().__init__(*violations)

    def __str__(self) -> str:
        return "; ".join(f"{v.field} {v.description}" for v in self.violations)

    @classmethod
    def of(cls, field: str, description: str) -> "InvalidRequest":
        return cls(FieldViolation(field, description))


class NotReady(FlyServeError):
    """No replica can serve this at present; a retry may succeed."""


class Overloaded(FlyServeError):
    """All places are taken.

    Attributes:
        retry_after_s: Seconds after which a retry may succeed; 0 if it cannot.
    """

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message, retry_after_s)

    def __str__(self) -> str:
        return str(self.args[0])


class InternalError(FlyServeError):
    """The server failed on this request, by a fault of its own; other requests are not affected."""


class Unauthenticated(FlyServeError):
    """The caller has no valid credentials."""


class DeadlineExceeded(FlyServeError):
    """The caller's deadline has passed."""


class ConfigError(FlyServeError):
    """A configuration has an unknown key, an invalid value or a missing file."""


class ModelError(FlyServeError):
    """A model folder cannot be served: missing, incomplete, or of an unsupported architecture."""


def describe(error: BaseException, limit: int = 400) -> str:
    """Return another library's error in one line of at most `limit` characters: its type and its message."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
