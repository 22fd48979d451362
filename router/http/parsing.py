"""From the JSON of a body to a checked model; every fault names its field, an unknown one the nearest."""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fly.errors import FieldViolation, InvalidRequest
from router.http.unsupported import UNSUPPORTED, drop_unsupported

M = TypeVar("M", bound=BaseModel)

_SHOWN_CHARACTERS = 60
_TYPE_FAULTS = ("_type", "_parsing", "is_instance_of")


def parse(model: type[M], data: Mapping[str, Any]) -> M:
    """A request.

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
            return str(fault["msg"]).removeprefix("Value error, ")
    shown = repr(fault["input"])
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[: _SHOWN_CHARACTERS - 3] + "..."
    return f"is {shown}, {str(fault['msg']).replace('Input should', 'must', 1)}"


def _path(location: tuple[int | str, ...]) -> str:
    """Such as `messages[0].content`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{_name(part)}" if path else _name(part)
    return path


def _name(part: str) -> str:
    """A name as the client wrote it, unless that is no name: then so that it fits on a line."""
    is_plain = part.isprintable() and len(part) <= _SHOWN_CHARACTERS
    return part if is_plain else ascii(part[:_SHOWN_CHARACTERS])


def _nearest(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    section: Any = model
    for part in location[:-1]:
        section = _section(section, part)
    fields = list(getattr(section, "model_fields", {}))
    candidates = [*fields, *UNSUPPORTED] if section is model else fields
    name = str(location[-1])
    begun = [candidate for candidate in candidates if len(name) > 1 and candidate.startswith(name)]
    near = begun or difflib.get_close_matches(name, candidates, n=1)
    return f", did you mean {near[0]}?" if near else ""


def _section(model: Any, part: int | str) -> Any:
    """The model behind a field; of an optional one or a list of models, that model."""
    if isinstance(part, int):
        return model
    field = getattr(model, "model_fields", {}).get(part)
    candidates = [field.annotation] if field is not None else []
    while candidates:
        candidate = candidates.pop()
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
        candidates += getattr(candidate, "__args__", ())
    return None
