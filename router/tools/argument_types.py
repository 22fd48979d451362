"""Types of an argument by its schema, and the JSON of an argument that a model writes as plain text. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from math import isfinite
from typing import Any, NamedTuple

from router.json_text import parse_json_text
from services.common.grammars.schemas import resolved

STRING = frozenset(("string",))
ANY = STRING | {"integer", "number", "boolean", "null", "object", "array"}
MOST_STEPS = 5_000
"""Parts of a schema, values in it, and parts of its references, that are looked at for the types of the
arguments of one tool."""
_MOST_DEPTH = 32
"""Parts within each other, and references, that lead to the type of an argument."""
_LONGEST_PATH = 1_000
"""Characters of a reference that is followed."""
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""Words of Python's, which templates print for values of earlier calls, so that models write them, too."""


class Properties(NamedTuple):
    """Arguments that the schema of a tool names.

    Attributes:
        schemas: Schema of each argument, by its name; None if it has none.
        required: Names of the arguments that a call must have.
        are_all: True if no other ones are allowed.
    """

    schemas: Mapping[str, Any]
    required: frozenset[str]
    are_all: bool


def properties_of(schema: Any) -> Properties:
    """Return the arguments that the schema of a tool names."""
    root = without_reference(schema, schema, count())
    found = root.get("properties")
    named = found if isinstance(found, Mapping) else {}
    required = [name for name in _list(root.get("required")) if isinstance(name, str)]
    unnamed = dict.fromkeys(name for name in required if name not in named)
    return Properties({**named, **unnamed}, frozenset(required), root.get("additionalProperties") is False)


def types_of(schema: Any, root: Any, steps: "count[int]", depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema allows, of those of JSON Schema; all where it does not say.

    References are paths within `root`. After `MOST_STEPS`, which `steps` counts for all arguments together,
    and deeper than `_MOST_DEPTH`, a schema says nothing.
    """
    if not isinstance(schema, Mapping) or next(steps) >= MOST_STEPS or depth == _MOST_DEPTH:
        return ANY
    found = ANY
    if "$ref" in schema:
        found &= types_of(_referred(root, schema["$ref"], steps), root, steps, depth + 1)
    if (named := schema.get("type")) is not None:
        found &= _named(named)
    if values := _list(schema.get("enum")) + ([schema["const"]] if "const" in schema else []):
        found &= _wider(map(_type_of, values)) if _are_few(values, steps) else ANY
    for key in ("anyOf", "oneOf"):
        if (choices := _list(schema.get(key))) and _are_few(choices, steps):
            found &= frozenset[str]().union(*(types_of(each, root, steps, depth + 1) for each in choices))
    if _are_few(parts := _list(schema.get("allOf")), steps):
        for each in parts:
            found &= types_of(each, root, steps, depth + 1)
    return found


class ArgumentTypes:
    """Types of the arguments of the tools of a request, worked out once for all calls of all choices."""

    def __init__(self, tools: Mapping[str, Any]) -> None:
        """Take the JSON Schema of the arguments of each tool, by its name."""
        self._tools = tools
        self._found: dict[str, Mapping[str, frozenset[str]]] = {}

    def __contains__(self, tool: object) -> bool:
        """Return True if a tool is known."""
        return tool in self._tools

    def __getitem__(self, tool: str) -> Mapping[str, frozenset[str]]:
        """Return the types of each argument that the schema of a tool names."""
        if tool not in self._found:
            schema, steps = self._tools[tool], count()
            properties = properties_of(schema).schemas
            self._found[tool] = {name: types_of(each, schema, steps) for name, each in properties.items()}
        return self._found[tool]


def json_of(text: str, types: frozenset[str]) -> str:
    """Return the JSON of a value that is written as plain text.

    It is the value itself if that is JSON of one of the types, else a string.
    """
    if types != STRING:
        word = text.strip()
        if "string" not in types or (word == "None" and types != ANY):
            word = _PYTHON_WORDS.get(word, word)
        try:
            found = _type_of(parse_json_text(word))
        except ValueError:
            found = "string"
        if found in types - STRING:
            return word
    return json.dumps(text, ensure_ascii=False)


def _are_few(items: Sequence[Any], steps: "count[int]") -> bool:
    """Count items; return False if that were too many steps."""
    return all(step < MOST_STEPS for step, _ in zip(steps, items, strict=False))


def _named(names: Any) -> frozenset[str]:
    """Return the types of the keyword `type`; all for names that JSON Schema does not have."""
    return _wider(name for name in _list(names)[: len(ANY)] or [names] if isinstance(name, str)) or ANY


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _wider(names: Iterable[str]) -> frozenset[str]:
    """Return those that are types; a number may be an integer."""
    found = frozenset(names) & ANY
    return found | {"integer"} if "number" in found else found


def _type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return ("integer" if value.is_integer() else "number") if isfinite(value) else "string"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def without_reference(schema: Any, root: Any, steps: "count[int]") -> Mapping[str, Any]:
    """Return the schema to which one refers, or itself; {} if there is none within `MOST_STEPS`."""
    followed = set[int]()
    while isinstance(schema, Mapping) and id(schema) not in followed and next(steps) < MOST_STEPS:
        if "$ref" not in schema:
            return schema
        followed.add(id(schema))
        schema = _referred(root, schema["$ref"], steps)
    return {}


def _referred(root: Any, path: Any, steps: "count[int]") -> Any:
    is_short = isinstance(path, str) and len(path) <= _LONGEST_PATH
    return resolved(root, path) if is_short and _are_few(path.split("/"), steps) else None
