"""JSON Schemas without what asserts nothing, and without what cannot be applied."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.grammars.library import faults_of_schemas
from services.common.grammars.schemas import FORMATS, loosened, resolved, without_annotations

DATA = {"const": {"uniqueItems": False, "not": 1}, "enum": [{"format": "path"}], "default": {"not": 2}}
LEAVES = st.sampled_from(
    [True, {}, {"type": "string"}, DATA, {"uniqueItems": False}, {"format": "path"}, {"not": True}]
)
ANY = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(
            lambda a, b: {"properties": {"not": a, "uniqueItems": b}, "additionalProperties": a}, inner, inner
        ),
        st.builds(lambda a, b: {"anyOf": [a, b], "type": "object", "not": b}, inner, inner),
        st.builds(lambda a: {"items": a, "uniqueItems": False, "$defs": {"format": a}, **DATA}, inner),
    ),
    max_leaves=12,
)


def keywords(schema: Any) -> set[str]:
    """Return the keywords of a schema and of those within it."""
    found = set[str]()
    loosened(schema, lambda part: bool(found.update(part)) or True)
    return found


@given(ANY)
def test_what_asserts_nothing_is_left_out_and_the_rest_is_as_it_was(schema: Any) -> None:
    plain = without_annotations(schema)
    assert not keywords(plain) & {"uniqueItems", "format"} and without_annotations(plain) == plain
    assert keywords(plain) == keywords(schema) - {"uniqueItems", "format"}


@given(ANY)
def test_only_keywords_that_are_not_usable_are_dropped(schema: Any) -> None:
    same, none = loosened(schema, lambda part: True)
    assert same == schema and not none
    looser, dropped = loosened(schema, lambda part: "not" not in part)
    assert "not" not in keywords(looser)
    assert bool(dropped) == ("not" in keywords(schema)) and all(path.endswith("not") for path in dropped)


def test_data_and_names_are_no_keywords() -> None:
    schema = {"properties": {"not": {"format": "path"}, "format": {"not": {}}}, **DATA}
    assert without_annotations(schema) == {**schema, "properties": {"not": {}, "format": {"not": {}}}}
    assert loosened(schema, lambda part: "not" not in part)[1] == ["properties.format.not"]


TREE = {"$defs": {"a/b": [1, {"c~": 2}]}, "anyOf": [{"x": 3}]}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", TREE),
        ("#/$defs/a~1b/1/c~0", 2),
        ("#/%24defs/a~1b/0", 1),
        ("#/anyOf/0/x", 3),
        ("#/anyOf/9", None),
        ("#/anyOf/x", None),
        ("#/anyOf/" + "0" * 5000, None),
        ("#/$defs/none/x", None),
        ("x.json", None),
        ("#name", None),
        (7, None),
    ],
)
def test_a_reference_is_a_path_within_the_schema(reference: Any, found: Any) -> None:
    assert resolved(TREE, reference) == found


def faults(schema: str) -> Any:
    return faults_of_schemas(f'{{"grammars": [{{"name": "a", "json_schema": {schema}}}]}}')


@pytest.mark.parametrize(
    "name", [*sorted(FORMATS), "path", "binary", "idn-email", "regex", "password", "int32"]
)
def test_the_library_asserts_the_listed_formats_alone(name: str) -> None:
    assert bool(faults(f'{{"type": "string", "format": "{name}"}}')) == (name not in FORMATS)


@pytest.mark.parametrize(
    ("schema", "dropped"),
    [
        ('{"type": "object", "properties": {"a": {"pattern": "^(?!b)"}}}', ("properties.a.pattern",)),
        ('{"oneOf": [{"type": "string"}, {"const": "a"}], "minLength": 1}', ("oneOf",)),
        ('{"items": [{"contains": {}}, {"$ref": "#/items/2"}]}', ("items[0].contains", "items[1].$ref")),
        ('{"allOf": [{"type": "string"}, {"type": "integer"}]}', ()),
        ('{"properties": {"a": 1}}', ()),
    ],
)
def test_faults_name_the_keywords_and_leave_a_schema_that_can_be_used(schema: str, dropped: Any) -> None:
    fault = faults(schema)["a"]
    assert fault.keywords == dropped and fault.error
    assert not faults(str(fault.looser).replace("'", '"').replace("True", "true"))
