"""The bound of the text that a grammar can force."""

import json
from math import inf, isfinite, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flyserve.core.grammar import ArgumentsSchema, Grammar, GrammarKind
from router.requests import forced_length as module
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
        {"type": "string", "pattern": "a{1000000000000}"},
        {"type": "object", "patternProperties": {"^a{100000}$": {"const": 1}}, "minProperties": 1},
        {"type": "object", "additionalProperties": {"const": 1}, "minProperties": 1000},
        {"const": "a" * 10_000},
        {"const": {"$defs": {"a": "a" * 10_000}}},
        {"x-guidance": {"item_separator": "," * 10_000}},
        {"$ref": "other.json"},
        {"$ref": "#/$defs/missing"},
        {"const": {"$ref": "#/const/a/" + "9" * 5000, "a": [1]}},
    ],
)
def test_a_schema_that_may_force_a_long_text_has_a_large_bound(schema: Any) -> None:
    assert of_schema(schema) > 8192


def test_a_part_is_visited_once_however_it_is_referred_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spellings of one place, and places within each other, share their parts."""
    visited, scalar_length = list[Any](), module._scalar_length

    def counted(value: Any) -> int:
        visited.append(value)
        return scalar_length(value)

    monkeypatch.setattr(module, "_scalar_length", counted)
    nested: Any = [0] * 500
    for _ in range(50):
        nested = [nested]
    places = ["#/default/0" + "/0" * depth for depth in range(50)]
    spelled = [place.replace("default", "d%65fault") for place in places]
    references = [{"$ref": place} for place in (*places, *spelled)]
    assert isfinite(of_schema({"type": "object", "default": [nested, *references]}))
    assert len(visited) < 500 + 3 * len(references)


def test_properties_named_as_keywords_are_no_fault() -> None:
    names = ("$ref", "minItems", "$defs", "pattern", "items")
    assert of_schema({"properties": {name: {"type": "string"} for name in names}}) > 0


def test_other_languages_have_none_but_lists_and_tools() -> None:
    assert forced_length(Grammar(GrammarKind.REGEX, "a")) == inf
    assert forced_length(Grammar(GrammarKind.LARK, 'start: "a"')) == inf
    assert forced_length(Grammar(GrammarKind.JSON_OBJECT)) == 0
    assert forced_length(Grammar(GrammarKind.CHOICE, '["a", "b"]')) == 10
    schemas = (ArgumentsSchema("args_0", "f", json.dumps(PERSON)),)
    assert 40 < forced_length(Grammar(GrammarKind.LARK, "start: x", schemas=schemas, is_of_tools=True)) < 1000
    assert 40 < forced_length(Grammar(GrammarKind.JSON_OBJECT, calls="calls: x", schemas=schemas)) < 1000
    assert forced_length(Grammar(GrammarKind.LARK, "start: x", calls="calls: x", schemas=schemas)) == inf


LARGE = 10**300
NAMED_LARGE = pytest.param(LARGE, id="10**300")


def test_large_numbers_in_a_constant_are_no_fault() -> None:
    repeated = {"a": {"minItems": LARGE, "b": {"minItems": LARGE}}}
    assert of_schema({"const": repeated}) == inf
    assert of_schema({"const": {**repeated, "c": {"pattern": ""}}}) == inf


@pytest.mark.parametrize("keyword", ["minItems", "minContains", "minProperties"])
@pytest.mark.parametrize("count", [1_000_001, 2**63, NAMED_LARGE, 1e308, inf, nan])
def test_more_repetitions_than_a_router_drafts_have_no_bound(keyword: str, count: float) -> None:
    assert of_schema({keyword: count}) == inf


@pytest.mark.parametrize("count", [True, False, None, "9", [9], {}, 0, -5, -(2**63), -1e9, -inf, 1.0])
def test_what_is_no_number_of_repetitions_repeats_nothing(count: Any) -> None:
    assert of_schema({"const": 1, "minItems": count}) < 1000


def test_the_bound_grows_with_the_repetitions() -> None:
    once = of_schema({"minItems": 1})
    assert of_schema({"minItems": 9}) == of_schema({"minItems": 9.0}) - 18 == 9 * once
    assert isfinite(of_schema({"minItems": 1_000_000}))


@pytest.mark.parametrize("keyword", ["maxItems", "minLength", "maxLength", "maxProperties"])
def test_lengths_and_maxima_force_no_text(keyword: str) -> None:
    assert of_schema({"type": "string", keyword: LARGE}) < 1000


@pytest.mark.parametrize("limit", [1e300, 1e-300, -1e300])
def test_a_number_is_as_long_as_without_its_exponent(limit: float) -> None:
    assert of_schema({"type": "number", "minimum": limit, "maximum": limit}) > 2 * 300


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=20,
)


@given(values)
def test_a_constant_is_no_longer_than_its_bound(value: Any) -> None:
    assert of_schema({"const": value}) >= len(json.dumps(value, separators=(",", ":")))


numbers = (
    st.integers()
    | st.floats()
    | st.sampled_from([LARGE, -LARGE, 2**63, 1e308, 5e-324, -0.0, inf, -inf, nan, True, False])
)
keywords = st.sampled_from(
    [
        *("minItems", "minContains", "minProperties", "maxItems", "minLength", "maxLength", "maxProperties"),
        *("minimum", "const", "items", "pattern", "$ref", "$defs", "a"),
    ]
)
references = st.sampled_from(["#", "#/a", "#/$defs/a", "#/items/0", "#/const/$ref", "other.json", ""])
odd_schemas = st.recursive(
    numbers | references | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords, inner, max_size=4),
    max_leaves=30,
)


@given(odd_schemas)
def test_every_schema_has_a_bound_or_none(schema: Any) -> None:
    found = of_schema(schema)
    assert found >= 0 and (isfinite(found) or found == inf)
