"""The chart's `values.schema.json`: keys of the deployment file from its classes, the others by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft7Validator
from pydantic import BaseModel

from orchestration.deployment.file import Deployment
from services.common.sections import ENGINE, engine_of, keys_of, named_sections, sections_of

FOLDER = Path(__file__).parent.parent / "helm"
OUTPUT = FOLDER / "flyserve" / "values.schema.json"
VALUES = FOLDER / "flyserve" / "values.yaml"
CHART_PART = Path(__file__).parent / "chart.schema.yaml"

SETTLED: Mapping[str, str] = {
    "name": "a Ray cluster of the chart serves one deployment",
    "controller": "routers find the registry by the Service of the head",
    "service_ports": "the pods and the NetworkPolicy name them",
    "target.node_resource": "marks the pods of the role",
    "drafter.node_resource": "marks the pods of the role",
    "sub_drafter.node_resource": "marks the pods of the role",
    "router.host": "a pod listens at all its addresses",
    "security.tls.certificate": "mounted from secrets.tls",
    "security.tls.key": "mounted from secrets.tls",
    "security.tls.ca": "mounted from secrets.tls",
}
"""Keys of the deployment file that are no values of the chart, each with the reason."""

_DROPPED = ("title", "format", "description")

Schema = dict[str, Any]
Sections = Sequence[type[BaseModel]]
"""A section, or those of a union by engine."""


def values_schema() -> Schema:
    """Return the whole schema of the chart's values."""
    chart: Schema = yaml.safe_load(CHART_PART.read_text(encoding="utf-8"))
    served = _section([Deployment])
    for key, more in chart["amended"].items():
        _key(served, key).update(more)
    values = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    pods = _with_required({"properties": _resolved(chart["properties"], chart["shared"])}, values)
    sections = [
        key for key, below in served["properties"].items() if values.get(key) and below["type"] == "object"
    ]
    made = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart flyserve",
        "type": "object",
        "additionalProperties": False,
        "required": [*sections, *pods["required"]],
        "properties": {**served["properties"], **pods["properties"]},
    }
    whole = _removable(made)
    standby = _key(whole, "ray.standby")["properties"]
    standby["values"] = _nullable(_overlay(whole, standby["values"]))
    return whole


def rendered() -> str:
    """Return the text of the file."""
    return json.dumps(values_schema(), indent=2, ensure_ascii=False) + "\n"


def plain_schemas(union: Sections) -> dict[str, Schema]:
    """Return the schema of each key of a section, or of a union of them, without references and texts."""
    made: dict[str, Schema] = {}
    for section in union:
        whole = section.model_json_schema()
        for name, field in whole["properties"].items():
            is_union = len(sections_of(section.model_fields[name].annotation)) > 1
            made.setdefault(name, {} if is_union else _named_switches(_plain(field, whole)))
    if len(union) > 1:
        engines = list(map(engine_of, union))
        made[ENGINE] = {"default": engines[0], "enum": engines, "type": "string"}
    return made


def _key(schema: Schema, key: str) -> Schema:
    """Return the schema of a key below, by its dotted name."""
    for part in key.split("."):
        schema = schema["properties"][part]
    return schema


def _overlay(whole: Schema, values: Schema) -> Schema:
    """Return the schema of values that are merged over others: copies of keys of `whole`."""
    made: Schema = {"type": "object", "additionalProperties": False, "properties": {}}
    for key in values["copies"]:
        *sections, name = key.split(".")
        place = made
        for section in sections:
            place = place["properties"].setdefault(
                section,
                {
                    "description": _key(whole, section)["description"],
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {},
                },
            )
        place["properties"][name] = _partial(_key(whole, key))
    return {"description": values["description"], **made}


def _partial(schema: Schema) -> Schema:
    """Return a schema of which no key must be there; one that was required may still not be null."""
    made = {key: value for key, value in schema.items() if key != "required"}
    for part in made.keys() & {"properties", "patternProperties"}:
        made[part] = {name: _partial(key) for name, key in made[part].items()}
    return made


def _with_required(schema: Schema, values: Mapping[str, Any]) -> Schema:
    """Return a section's schema that requires the keys which these values of the chart fill."""
    below = {
        key: _with_required(inner, values[key]) if "properties" in inner and key in values else inner
        for key, inner in schema["properties"].items()
    }
    required = [key for key, inner in below.items() if _is_needed(inner, values.get(key))]
    return {**schema, "properties": below, **({"required": required} if required else {})}


def _is_needed(schema: Schema, value: Any) -> bool:
    """Return True for a section, a number, a switch, and a text that may not be empty."""
    if value is None or isinstance(value, list) or (isinstance(value, dict) and "properties" not in schema):
        return False
    accepts = Draft7Validator(schema).is_valid
    return not (accepts(None) or accepts(""))


def _removable(schema: Schema) -> Schema:
    """Return a schema in which each key below may be null unless it is required.

    Null removes a key: helm does so where the chart has a default, `flyserve.dropNulls` elsewhere.
    """
    required = schema.get("required", ())
    made = dict(schema)
    for part in ("properties", "patternProperties"):
        if part in made:
            below = {name: _removable(key) for name, key in made[part].items()}
            made[part] = {name: key if name in required else _nullable(key) for name, key in below.items()}
    return made


def _nullable(schema: Schema) -> Schema:
    made = dict(schema)
    if types := made.get("type"):
        made["type"] = list(dict.fromkeys([*([types] if isinstance(types, str) else types), "null"]))
    if "enum" in made:
        made["enum"] = list(dict.fromkeys([*made["enum"], None]))
    return made


def _section(union: Sections, prefix: str = "") -> Schema:
    """Return an object's schema with descriptions; `prefix` is the section's dotted name in the values."""
    schemas, fields = plain_schemas(union), keys_of(union)
    properties = {
        key: {
            "description": " ".join((field.description or "").split()),
            **_nested(field.annotation, schemas[key], f"{prefix}{key}."),
        }
        for key, field in fields.items()
        if f"{prefix}{key}" not in SETTLED
    }
    made: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    required = [key for key in properties if all(_requires(section, key) for section in union)]
    return {**made, "required": required} if required else made


def _requires(section: type[BaseModel], key: str) -> bool:
    return key in section.model_fields and section.model_fields[key].is_required()


def _nested(annotation: Any, schema: Schema, prefix: str) -> Schema:
    """Return a key's schema; that of a section is made from its class, for its descriptions."""
    if named := named_sections(annotation):
        each = _section(named, f"{prefix}NAME.")
        by_name = dict.fromkeys(schema["patternProperties"], each)
        return {**schema, "patternProperties": by_name, "additionalProperties": False}
    if not (inner := sections_of(annotation)):
        return schema
    made = _section(inner, prefix)
    is_optional = type(None) in getattr(annotation, "__args__", ())
    return {**made, "type": ["object", "null"]} if is_optional else made


def _plain(schema: Schema, whole: Schema) -> Schema:
    """Return a schema without references; `anyOf` with null becomes a type that may be null."""
    if "$ref" in schema:
        return {
            **_plain(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole),
            **{key: value for key, value in schema.items() if key == "default"},
        }
    if "anyOf" in schema:
        first = _plain(next(option for option in schema["anyOf"] if option.get("type") != "null"), whole)
        made = {**first, "type": [first["type"], "null"]}
        if "enum" in made:
            made["enum"] = [*made["enum"], None]
        return made
    if "items" in schema:
        schema = {**schema, "items": _plain(schema["items"], whole)}
    return {key: value for key, value in schema.items() if key not in _DROPPED}


def _named_switches(schema: Schema) -> Schema:
    """Accept the booleans as which YAML reads a bare on or off; the deployment file takes them back."""
    if "off" not in schema.get("enum", ()):
        return schema
    return {**schema, "type": ["string", "boolean"], "enum": [*schema["enum"], True, False]}


def _resolved(schema: Any, shared: Mapping[str, Schema]) -> Any:
    """Return the hand-written part with each `use: name` replaced by the shared schema of that name.

    Keys next to `use` replace those of the shared schema; properties are added to its own.
    """
    if isinstance(schema, list):
        return [_resolved(item, shared) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("use"), str):
        rest = {key: value for key, value in schema.items() if key != "use"}
        base, own = _resolved(shared[schema["use"]], shared), _resolved(rest, shared)
        properties = {**base.get("properties", {}), **own.get("properties", {})}
        return {**base, **own, **({"properties": properties} if properties else {})}
    made = {key: _resolved(value, shared) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made:
        made = {"type": "object", "additionalProperties": False, **made}
    return made
