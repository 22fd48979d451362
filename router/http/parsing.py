"""Parse the JSON of a body into a checked model.

Every fault has its field, and the first unknown fields the nearest known ones. `known_fields` has the fields
that an API does not serve.
"""

import json
import reprlib
from collections.abc import Container, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from flyserve.core.errors import FieldViolation, InvalidRequest, refuse
from flyserve.core.wording import requirement
from router.config import LimitsConfig
from router.http.known_fields import IGNORED, REMOVED, UNSERVED
from services.common.config_faults import nearest
from services.common.sections import section_at

M = TypeVar("M", bound=BaseModel)

_SHOWN_CHARACTERS = 60
_MOST_SUGGESTIONS = 3
"""Unknown fields of one body for which the nearest known one is looked up."""
_TYPE_FAULTS = ("_type", "_parsing", "is_instance_of")
_REQUIREMENTS = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "float_type": "must be a number",
    "int_type": "must be an integer",
    "list_type": "must be a list",
    "model_type": "must be an object",
    "string_type": "must be a text",
    "too_short": "must have at least one item",
    "finite_number": "must be finite",
}
"""Requirements by kind of fault, where the words of pydantic are about Python."""


def parse(model: type[M], data: Mapping[str, Any], limits: LimitsConfig) -> M:
    """Return the request; raise InvalidRequest with its first faults."""
    _refuse_many_fields(model, data)
    served = _without_unserved(data, model.model_fields)
    try:
        return model.model_validate(served, context=limits)
    except ValidationError as error:
        refuse(_violations(model, error.errors(include_url=False)))
        raise


def _without_unserved(data: Mapping[str, Any], served: Container[str]) -> dict[str, Any]:
    """Return the fields without known ones that this API does not serve, and that request nothing.

    Raises:
        InvalidRequest: Others request something.
    """
    others = {name for name in data if name not in served and (name in UNSERVED or name in IGNORED)}
    if not others:
        return dict(data)
    known = (name for name in data if name in others and name not in IGNORED)
    refuse(_unserved(name, data[name]) for name in known if not _requests_nothing(name, data))
    return {name: value for name, value in data.items() if name not in others}


def _requests_nothing(name: str, data: Mapping[str, Any]) -> bool:
    """Compare a field with its idle values; the best of n choices are all of them if there are n."""
    is_best_of_all = name == "best_of" and data[name] == data.get("n")
    return is_best_of_all or UNSERVED[name].requests_nothing(data[name])


def _unserved(name: str, value: Any) -> FieldViolation:
    kind = UNSERVED[name]
    if kind.remedy:
        found = f"is {shown(value)}, is not supported here: {kind.remedy}"
    else:
        idle = " or ".join(map(json.dumps, kind.alternatives(value)))
        found = "is not supported" + (f", only {idle} is" if idle else "")
    return FieldViolation(name, found, "unsupported_parameter")


def _refuse_many_fields(model: type[BaseModel], data: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a body with more fields than there are, without looking at all of them."""
    if len(data) > len(model.model_fields) + len(UNSERVED) + len(IGNORED):
        known = {*model.model_fields, *UNSERVED, *IGNORED}
        first = next(name for name in data if name not in known)
        found = f"is unknown; the body has {len(data)} fields, at most {len(known)} are known"
        raise InvalidRequest(FieldViolation(_name(first), found, "unknown_parameter"))


def _violations(model: type[BaseModel], faults: list[Any]) -> Iterator[FieldViolation]:
    """Yield the violations, some of those of unknown fields with a suggestion."""
    num_unknown = 0
    for fault in faults:
        num_unknown += fault["type"] == "extra_forbidden"
        suggests = num_unknown <= _MOST_SUGGESTIONS
        yield FieldViolation(_path(fault["loc"]), _description(model, fault, suggests), _reason(fault))


def _reason(fault: Mapping[str, Any]) -> str:
    kind = str(fault["type"])
    known = {
        "missing": "missing_required_parameter",
        "extra_forbidden": "unknown_parameter",
        "unsupported": "unsupported_parameter",
    }
    return known.get(kind, "invalid_type" if kind.endswith(_TYPE_FAULTS) else "invalid_value")


def _description(model: type[BaseModel], fault: Mapping[str, Any], suggests: bool) -> str:
    match fault["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            if remedy := REMOVED.get(_path(fault["loc"])):
                return f"is not supported: {remedy}"
            return f"is unknown{_nearest(model, fault['loc']) if suggests else ''}"
        case "value_error" | "unsupported" | "too_many":
            return requirement(fault)
    return f"is {shown(fault['input'])}, {_REQUIREMENTS.get(fault['type']) or requirement(fault)}"


class _Shown(reprlib.Repr):
    """Short forms of values; of a list or object in another only that there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlong = 1, _SHOWN_CHARACTERS

    def repr_str(self, x: str, level: int) -> str:
        return repr(x[: _SHOWN_CHARACTERS + 1])

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        return super().repr_dict(x, level) if len(x) <= self.maxdict else f"an object of {len(x)} fields"


def shown(value: Any) -> str:
    """Return the beginning of a value of a body as text; its length and time do not grow with the value."""
    text = _Shown().repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


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
    further = UNSERVED if len(location) == 1 else ()
    fields = getattr(section_at(model, location), "model_fields", {})
    names = (field.alias or name for name, field in fields.items())
    near = nearest(str(location[-1]), (*names, *further))
    return f", did you mean {near}?" if near else ""
