"""Types of arguments by their schemas, and the JSON of values that are written as text."""

import json
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.tools import argument_types
from router.tools.argument_types import (
    ANY,
    MOST_STEPS,
    STRING,
    json_of,
    properties_of,
    types_of,
    without_reference,
)
from router.tools.families import ToolFamily
from services.common.grammars.schemas import resolved
from tests.support.written_messages import TOOLS, form_of, parsed

ROOT = {"$defs": {"n/o": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}, "s": {"type": "string"}}}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "number"}, {"number", "integer"}),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": 1.5}, {"number", "integer"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"integer", "null"}),
        ({"oneOf": [{"$ref": "#/$defs/s"}, {"enum": [True]}]}, {"string", "boolean"}),
        ({"allOf": [{"type": ["array", "object"]}, {"type": "array"}]}, {"array"}),
        ({"$ref": "#/$defs/n~1o"}, {"integer"}),
        ({"$ref": "#/$defs/s", "description": "text"}, {"string"}),
        ({"$ref": "#/$defs/loop"}, ANY),
        ({"$ref": "other.json"}, ANY),
        ({"$ref": 5, "type": 7, "anyOf": {}, "enum": None}, ANY),
        ({"type": "dict"}, ANY),
        ({}, ANY),
        (True, ANY),
        (None, ANY),
    ],
)
def test_a_schema_shows_its_types(schema: Any, types: set[str]) -> None:
    assert types_of(schema, ROOT, count()) == types


@pytest.mark.parametrize(
    "root",
    [
        {"anyOf": [{"$ref": "#"}, *[0] * 5000]},
        {"anyOf": [{"type": "integer"}] * 5000},
        {"enum": [1] * 5000},
        {"allOf": [{"type": "integer"}] * 5000},
        {
            "$ref": "#/$defs/0",
            "$defs": {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(50)},
        },
    ],
)
def test_the_work_for_all_arguments_of_a_tool_is_limited(root: Any) -> None:
    steps = count()
    for _ in range(100):
        assert types_of({"$ref": "#"}, root, steps) == ANY
    assert next(steps) < 2 * MOST_STEPS


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("5", STRING, '"5"'),
        ("5", {"integer"}, "5"),
        (" 5\n", {"integer"}, "5"),
        ("1.0", {"integer"}, "1.0"),
        ("1e999", {"number"}, '"1e999"'),
        ("NaN", ANY, '"NaN"'),
        ("5", {"string", "null"}, '"5"'),
        ("None", {"string", "null"}, "null"),
        ("None", ANY, '"None"'),
        ("null", {"string", "null"}, "null"),
        ("True", {"boolean"}, "true"),
        ("None", {"integer", "null"}, "null"),
        ("True", {"boolean", "string"}, '"True"'),
        ("five", {"integer"}, '"five"'),
        ('{"a": [1]}', {"object"}, '{"a": [1]}'),
        ("{'a': 1}", {"object"}, "\"{'a': 1}\""),
        ('"a"', ANY, '"\\"a\\""'),
        ("[" * 100_000, ANY, json.dumps("[" * 100_000)),
        ("", ANY, '""'),
    ],
)
def test_a_value_is_json_of_its_types_or_a_string(text: str, types: set[str], expected: str) -> None:
    assert json_of(text, frozenset(types)) == expected


@given(JSON)
def test_a_value_that_a_template_prints_is_read_as_it_was(value: Any) -> None:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    types = STRING if isinstance(value, str) else ANY
    assert json.loads(json_of(text, types)) == value


def test_the_arguments_of_a_tool_are_the_properties_of_its_schema() -> None:
    schema = {"properties": {"a": {}}, "required": ["a", "b", 5]}
    found = ({"a": {}, "b": None}, {"a", "b"}, False)
    assert properties_of(schema) == found
    assert properties_of({"$ref": "#/$defs/x", "$defs": {"x": schema}}) == found
    assert properties_of({"additionalProperties": False}) == ({}, frozenset(), True)
    for empty in ({}, {"properties": []}, {"$ref": "#"}, {"$ref": "#/no"}, None):
        assert properties_of(empty) == ({}, frozenset(), False)


def nested(levels: int) -> dict[str, Any]:
    """Return a schema that refers, by a path of many levels, to a part that refers to itself."""
    reference = {"$ref": "#" + "/x" * levels}
    schema: dict[str, Any] = reference
    for _ in range(levels):
        schema = {"x": schema}
    return {**reference, **schema}


def test_a_reference_is_followed_once_and_its_path_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = list[int]()

    def counted(schema: Any, path: str) -> Any:
        lengths.append(path.count("/"))
        return resolved(schema, path)

    monkeypatch.setattr(argument_types, "resolved", counted)
    assert properties_of(nested(60)) == ({}, frozenset(), False) and lengths == [60, 60]
    steps, root = count(), {**nested(400), "properties": {}}
    for _ in range(100):
        types_of({"$ref": root["$ref"]}, root, steps)
    assert sum(lengths) < 2 * MOST_STEPS


def test_the_schema_of_a_tool_is_read_once_for_all_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[Any]()

    def counted(schema: Any, root: Any, steps: Any) -> Any:
        read.append(schema)
        return without_reference(schema, root, steps)

    monkeypatch.setattr(argument_types, "without_reference", counted)
    form = form_of(ToolFamily.GLM)
    for _ in range(2):
        call = "<tool_call>f<arg_key>n</arg_key><arg_value>5</arg_value></tool_call>"
        found = parsed(form, [(1, call * 20)], [])
        assert [each.arguments for each in found.calls] == ['{"n": 5}'] * 20
    assert read == [TOOLS["f"]]
