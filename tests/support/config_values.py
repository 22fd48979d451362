"""Every key of a configuration section with a valid value other than its default, made from its type."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from services.common.sections import keys_of, named_sections, sections_of
from tools.chart_schema import plain_schemas

STRINGS = ("keys.yaml", "http://127.0.0.1:4317", "official", "5100-5199", "other")


def other_values(union: Sequence[type[BaseModel]], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted name of every key, and a value that it does not have by itself."""
    schemas = plain_schemas(union)
    for name, field in keys_of(union).items():
        if inner := sections_of(field.annotation):
            yield from other_values(inner, f"{prefix}{name}.")
        elif named := named_sections(field.annotation):
            yield f"{prefix}{name}", {STRINGS[-1]: nested(dict(other_values(named)))}
        else:
            yield f"{prefix}{name}", other_value(schemas[name])


def other_value(schema: Mapping[str, Any]) -> Any:
    types = schema.get("type", ())
    kinds = {types} if isinstance(types, str) else set(types)
    default = schema.get("default")
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return next(value for value in schema["enum"] if value != default and isinstance(value, str))
    if "boolean" in kinds:
        return not default
    if kinds & {"integer", "number"}:
        return _other_number(schema, default)
    if "array" in kinds:
        return ["api.example.com"] if "enum" not in schema["items"] else schema["items"]["enum"][:1]
    if "string" in kinds:
        return next(
            text for text in STRINGS if re.search(schema.get("pattern", ""), text) and text != default
        )
    # Parameters of a simulated model, the only mapping that is no section.
    return {"base_s": 0.25}


def _other_number(schema: Mapping[str, Any], default: float | None) -> float:
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    # A default that is computed is often the least value, or one more.
    value = least + 2 if default is None else default + 1
    if value <= (most := schema.get("maximum", value)):
        return value
    if default != most:
        return most
    return (least + most) // 2 if isinstance(most, int) else (least + most) / 2


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections made of dotted names."""
    made: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        section = made
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return made


def at(data: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted name."""
    for part in key.split("."):
        data = data[part]
    return data
