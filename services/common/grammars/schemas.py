"""JSON Schemas: what asserts nothing, and the parts of a schema that cannot be applied. Pure."""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
"""Formats that the library asserts; JSON Schema calls any other one an annotation."""
_MAPS = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
"""Keywords whose values are schemas by name."""
_SCHEMAS = frozenset(
    (
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "items", "prefixItems", "contains"),
        *("additionalItems", "unevaluatedItems", "additionalProperties", "unevaluatedProperties"),
        "propertyNames",
    )
)
"""Keywords whose value is a schema, or a list of schemas."""


def without_annotations(schema: Any) -> Any:
    """Return a schema without the keywords that assert nothing but look as if they did."""
    if not isinstance(schema, dict):
        return schema
    return {
        keyword: _within(keyword, value, lambda part, _: without_annotations(part))
        for keyword, value in schema.items()
        if not _asserts_nothing(keyword, value)
    }


def loosened(schema: Any, is_usable: Callable[[Any], bool]) -> tuple[Any, list[str]]:
    """Return a schema without the keywords that are not usable, and the paths of these.

    Each keyword is tried by itself, without the schemas in it, so the work grows with the schema's length. A
    `oneOf` that is not usable stays, to be read as `anyOf`.
    """
    dropped: list[str] = []

    def loosen(part: Any, path: str) -> Any:
        if not isinstance(part, dict):
            return part if isinstance(part, bool) else True
        kept = {}
        for keyword, value in part.items():
            is_kept = can_use(keyword, value)
            if not is_kept:
                dropped.append(f"{path}{keyword}")
            if is_kept or keyword == "oneOf":
                kept[keyword] = _within(keyword, value, lambda inner, step: loosen(inner, f"{path}{step}."))
        return kept

    def can_use(keyword: str, value: Any) -> bool:
        if keyword == "$ref":
            return resolved(schema, value) is not None
        if keyword == "oneOf":
            return is_usable({keyword: value})
        return is_usable({keyword: _within(keyword, value, lambda *_: True)})

    return loosen(schema, ""), dropped


def resolved(schema: Any, reference: Any) -> Any:
    """Return the part of a schema that `#/...` refers to; None if it has none, or for any other reference."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    place = schema
    for step in unquote(reference).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list):
            is_index = key.isdecimal() and len(key) < 10 and int(key) < len(place)
            place = place[int(key)] if is_index else None
        else:
            place = place.get(key) if isinstance(place, dict) else None
    return place


def _asserts_nothing(keyword: str, value: Any) -> bool:
    if keyword == "format":
        return not isinstance(value, str) or value not in FORMATS
    return keyword == "uniqueItems" and value is False


def _within(keyword: str, value: Any, change: Callable[[Any, str], Any]) -> Any:
    """Return the value of a keyword with its schemas changed; `change` gets each with its path in here."""
    if keyword in _MAPS and isinstance(value, dict):
        return {name: change(part, f"{keyword}.{name}") for name, part in value.items()}
    if keyword not in _SCHEMAS or not isinstance(value, dict | list):
        return value
    if isinstance(value, list):
        return [change(part, f"{keyword}[{index}]") for index, part in enumerate(value)]
    return change(value, keyword)
