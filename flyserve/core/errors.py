"""Hierarchy of all errors; flyserve/wire/status.py maps it to gRPC and back.

FlyServeError                 base of all of them
├── InvalidRequest            a field breaks a limit: change the request
├── ConfigError               a value of the configuration or of the client is wrong: change it
├── ModelError                a model folder cannot be served
├── Unauthenticated           the server wants other credentials
├── NotReady                  nothing can serve this at present: try again later
├── Overloaded                all places are taken: try again after `retry_after_s`
├── DeadlineExceeded          the time limit of the call has passed
├── StreamBroken              a stream broke and cannot be resumed (`flyserve.received`); has what arrived
└── InternalError             the server failed by a fault of its own
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

MOST_VIOLATIONS = 16
"""Violations that one error reports; nothing looks for more of them."""
MOST_ERROR_BYTES = 2560
"""Longest text of an error in UTF-8. The trailing metadata of gRPC has it twice, encoded, within 8 kB."""
_MOST_FIELD_BYTES = 256
NO_CHAT_TEMPLATE = "no_chat_template"
"""Reason of the violation in a conversation if the model has no chat template."""


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
    """The request breaks a limit; lists each field, the value found and the limit.

    Attributes:
        violations: The first violations, cut to the largest error.
    """

    def __init__(self, *violations: FieldViolation) -> None:
        self.violations = tuple(_bounded(violations))
        super().__init__(*self.violations)

    def __str__(self) -> str:
        return "; ".join(f"{v.field} {v.description}" for v in self.violations)

    @classmethod
    def of(cls, field: str, description: str) -> "InvalidRequest":
        return cls(FieldViolation(field, description))


def _bounded(violations: Iterable[FieldViolation]) -> Iterator[FieldViolation]:
    """Yield the first violations, as many as an error may have, the last one cut to what is left."""
    left = MOST_ERROR_BYTES
    for violation in islice(violations, MOST_VIOLATIONS):
        field = cut(violation.field, min(left, _MOST_FIELD_BYTES))
        description = cut(violation.description, left - _num_bytes(field))
        yield replace(violation, field=field, description=description)
        left -= _num_bytes(field) + _num_bytes(description) + len("; ")
        if left <= _MOST_FIELD_BYTES:
            return


def refuse(violations: Iterable[FieldViolation]) -> None:
    """Raise InvalidRequest if there are violations; take no more of them than it reports."""
    if found := tuple(islice(violations, MOST_VIOLATIONS)):
        raise InvalidRequest(*found)


def cut(text: str, most_bytes: int) -> str:
    """Return a text whose UTF-8 has at most `most_bytes`; dots mark what is left out."""
    if _num_bytes(text[: most_bytes + 1]) <= most_bytes:
        return text
    return text[:most_bytes].encode("utf-8", "replace")[: most_bytes - 3].decode("utf-8", "ignore") + "..."


def quoted(text: str, most_bytes: int = 60) -> str:
    """Return a client's text in quotes, short enough to leave room for the limit that it breaks."""
    return repr(cut(text, most_bytes))


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


START_FIRST = "start a deployment with: flyserve up"
"""Advice to a client if nothing answers."""


class NotReady(FlyServeError):
    """No replica can serve this at present; a retry may succeed."""


class InvalidAnswer(NotReady):
    """The answer of a replica does not fit its step."""


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


class NoGrpcPort(ConfigError):
    """The server at an address speaks another protocol than gRPC."""


class ModelError(FlyServeError):
    """A model folder cannot be served: missing, incomplete, or of an unsupported architecture."""


def one_line(text: object) -> str:
    """Return a text, or the message of an error, in one line."""
    return " ".join(str(text).split())


def describe(error: BaseException, limit: int = 400) -> str:
    """Return another library's error in one line of at most `limit` characters: its type and its message."""
    text = f"{type(error).__name__}: {one_line(error)}".removesuffix(": ")
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
