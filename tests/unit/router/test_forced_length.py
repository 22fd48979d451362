"""The bound of the text that a grammar can force."""

import json
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.grammar import ArgumentsSchema, Grammar, GrammarKind
from router.requests.forced_length import forced_length


def of_schema(schema: Any) -> float:
    return forced_length(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))


DOUBLING = {
    "$ref": "#/$defs/d0",
    "$defs": {
        **{f"d{n}": {"prefixItems": [{"$ref": f"#/$defs/d{n + 1}"}] * 2, "minItems": 2} for n in range(30)},
        "d30": {"const": 1},
    },
}
TREE = {"type": "object", "properties": {"child": {"$ref": "#"}, "next": {"$ref": "#/properties/child"}}}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "required": ["name", "address"],
    "$defs": {"address": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


def test_a_usual_schema_has_a_small_bound() -> None:
    assert len('{"name":"","address":{"city":""}}') < of_schema(PERSON) < 1000
    assert of_schema(True) < 10 and of_schema({}) < 10


@pytest.mark.parametrize(
    "schema",
    [
        DOUBLING,
        TREE,
        {"type": "array", "items": {"const": 1}, "minItems": 1_000_000},
        {
            "type": "array",
            "items": {"type": "array", "items": {"const": 1}, "minItems": 900},
            "minItems": 900,
        },
        {"type": "string", "pattern": "^(a{1000}){1000}$"},
        {"const": "a" * 10_000},
        {"x-guidance": {"item_separator": "," * 10_000}},
        {"$ref": "other.json"},
        {"$ref": "#/$defs/missing"},
    ],
)
def test_a_schema_that_may_force_a_long_text_has_a_large_bound(schema: Any) -> None:
    assert of_schema(schema) > 8192


def test_properties_named_as_keywords_are_no_fault() -> None:
    names = ("$ref", "minItems", "$defs", "pattern", "items")
    assert of_schema({"properties": {name: {"type": "string"} for name in names}}) > 0


def test_other_languages_have_none_but_lists_and_tools() -> None:
    assert forced_length(Grammar(GrammarKind.REGEX, "a")) == inf
    assert forced_length(Grammar(GrammarKind.LARK, 'start: "a"')) == inf
    assert forced_length(Grammar(GrammarKind.JSON_OBJECT)) == 0
    assert forced_length(Grammar(GrammarKind.CHOICE, '["a", "b"]')) == 10
    schemas = (ArgumentsSchema("args_0", "f", json.dumps(PERSON)),)
    assert 40 < forced_length(Grammar(GrammarKind.LARK, "start: x", schemas=schemas)) < 1000
    assert 40 < forced_length(Grammar(GrammarKind.JSON_OBJECT, calls="calls: x", schemas=schemas)) < 1000
    assert forced_length(Grammar(GrammarKind.LARK, "start: x", calls="calls: x", schemas=schemas)) == inf


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=20,
)


@given(values)
def test_a_constant_is_no_longer_than_its_bound(value: Any) -> None:
    assert of_schema({"const": value}) >= len(json.dumps(value, separators=(",", ":")))
