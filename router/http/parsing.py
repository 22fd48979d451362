"""Parse the JSON of a body into a checked model; every fault has its field, an unknown one the nearest."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fly.errors import FieldViolation, InvalidRequest
from router.http.unsupported import UNSUPPORTED, drop_unsupported
from services.common.config import MESSAGE_PREFIX, nearest, section_at

M = TypeVar("M", bound=BaseModel)

_SHOWN_CHARACTERS = 60
_TYPE_FAULTS = ("_type", "_parsing", "is_instance_of")


def parse(model: type[M], data: Mapping[str, Any]) -> M:
    """Return the request.

    Raises:
        InvalidRequest: With every fault.
    """
    supported = drop_unsupported(data)
    try:
        return model.model_validate(supported)
    except ValidationError as error:
        raise InvalidRequest(
            *(_violation(model, fault) for fault in error.errors(include_url=False))
        ) from None


def _reason(fault: Mapping[str, Any]) -> str:
    kind = str(fault["type"])
    known = {
        "missing": "missing_required_parameter",
        "extra_forbidden": "unknown_parameter",
        "unsupported": "unsupported_parameter",
    }
    return known.get(kind, "invalid_type" if kind.endswith(_TYPE_FAULTS) else "invalid_value")


def _violation(model: type[BaseModel], fault: Mapping[str, Any]) -> FieldViolation:
    return FieldViolation(_path(fault["loc"]), _description(model, fault), _reason(fault))


def _description(model: type[BaseModel], fault: Mapping[str, Any]) -> str:
    match fault["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"is unknown{_nearest(model, fault['loc'])}"
        case "value_error" | "unsupported":
            return str(fault["msg"]).removeprefix(MESSAGE_PREFIX)
    shown = repr(fault["input"])
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[: _SHOWN_CHARACTERS - 3] + "..."
    return f"is {shown}, {str(fault['msg']).replace('Input should', 'must', 1)}"


def _path(location: tuple[int | str, ...]) -> str:
    """Return a path such as `messages[0].content`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{_name(part)}" if path else _name(part)
    return path


def _name(part: str) -> str:
    """Return a name as the client wrote it, or an escaped and shortened form if it does not fit on a line."""
    is_plain = part.isprintable() and len(part) <= _SHOWN_CHARACTERS
    return part if is_plain else ascii(part[:_SHOWN_CHARACTERS])


def _nearest(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    further = UNSUPPORTED if len(location) == 1 else ()
    fields = getattr(section_at(model, location), "model_fields", {})
    near = nearest(str(location[-1]), (*fields, *further))
    return f", did you mean {near}?" if near else ""
