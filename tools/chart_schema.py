"""Makes `flyserve/values.schema.json`: the deployment file's keys from its classes, the chart's own by hand.

What a class says of its attributes is what the schema says of its keys.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from fly.presets import PRESETS
from fly.types import FlyRule
from orchestration.deployment.file import Deployment

FOLDER = Path(__file__).parent.parent / "helm"
OUTPUT = FOLDER / "flyserve" / "values.schema.json"
CHART_PART = Path(__file__).parent / "chart.schema.yaml"

SETTLED: Mapping[str, str] = {
    "name": "a Ray cluster of the chart serves one deployment",
    "controller": "routers find the registry by the Service of the head",
    "service_ports": "the pods and the NetworkPolicy name them",
    "target.node_resource": "marks the pods of the role",
    "drafter.node_resource": "marks the pods of the role",
    "sub_drafter.node_resource": "marks the pods of the role",
    "router.host": "a pod listens at all its addresses",
    "telemetry.replica": "the controller names each replica",
    "telemetry.metrics_ports": "the controller gives each tier a hundred",
    "telemetry.waits_for_port": "the controller lets replicas replace each other",
    "security.tls.certificate": "mounted from secrets.tls",
    "security.tls.key": "mounted from secrets.tls",
    "security.tls.ca": "mounted from secrets.tls",
}
"""Keys of the deployment file that are no values, and why: the chart or the controller settles them."""

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_DROPPED = ("title", "format", "description")

Schema = dict[str, Any]


def values_schema() -> Schema:
    """The whole schema of the chart's values."""
    chart: Schema = yaml.safe_load(CHART_PART.read_text(encoding="utf-8"))
    served = _section(Deployment)
    for key, more in chart["amended"].items():
        _key(served, key).update(more)
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart flyserve",
        "type": "object",
        "additionalProperties": False,
        "required": ["target"],
        "properties": {**served["properties"], **_resolved(chart["properties"], chart["shared"])},
    }


def rendered() -> str:
    """The file's text."""
    return json.dumps(values_schema(), indent=2, ensure_ascii=False) + "\n"


def _key(schema: Schema, key: str) -> Schema:
    """The schema of a key below, by its dotted name."""
    for part in key.split("."):
        schema = schema["properties"][part]
    return schema


def _section(section: type[BaseModel], prefix: str = "") -> Schema:
    """An object's schema: its keys with the words of its class; `prefix` is what is before them in values."""
    whole = section.model_json_schema()
    words = dict(_descriptions(section))
    properties = {
        key: {
            "description": words.get(key, key),
            **_field(field.annotation, whole["properties"][key], whole, f"{prefix}{key}."),
        }
        for key, field in section.model_fields.items()
        if f"{prefix}{key}" not in SETTLED
    }
    if "preset" in properties:
        properties["preset"]["enum"] = sorted(PRESETS)
    made: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    if required := [key for key in whole.get("required", ()) if key in properties]:
        made["required"] = required
    return made


def _field(annotation: Any, schema: Schema, whole: Schema, prefix: str) -> Schema:
    """A key's schema; that of a section is made again, for the sake of its descriptions."""
    options = getattr(annotation, "__args__", (annotation,))
    for option in options:
        if isinstance(option, type) and issubclass(option, BaseModel):
            made = _section(option, prefix)
            return {**made, "type": ["object", "null"]} if type(None) in options else made
    return _named_switches(_plain(schema, whole))


def _plain(schema: Schema, whole: Schema) -> Schema:
    """The schema without references and adornments; `anyOf` with null becomes a type that may be null."""
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
    return {key: value for key, value in schema.items() if key not in _DROPPED}


def _named_switches(schema: Schema) -> Schema:
    """YAML reads a bare on or off as a truth value, which the deployment file takes back."""
    if "off" not in schema.get("enum", ()):
        return schema
    return {**schema, "type": ["string", "boolean"], "enum": [*schema["enum"], True, False]}


def _descriptions(section: type) -> Iterator[tuple[str, str]]:
    """What a class and those that it comes from say of their attributes; the nearest word comes last."""
    for base in (FlyRule, *reversed(section.__mro__)):
        for name, words in _ATTRIBUTE.findall(inspect.cleandoc(base.__doc__ or "")):
            yield name, " ".join(words.split())


def _resolved(schema: Any, shared: Mapping[str, Schema]) -> Any:
    """The hand-written part with `use: name` replaced by what is shared under that name."""
    if isinstance(schema, Enum | str | int | float | bool) or schema is None:
        return schema
    if isinstance(schema, list):
        return [_resolved(item, shared) for item in schema]
    if isinstance(schema.get("use"), str):
        rest = {key: value for key, value in schema.items() if key != "use"}
        return {**_resolved(shared[schema["use"]], shared), **_resolved(rest, shared)}
    made = {key: _resolved(value, shared) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and "additionalProperties" not in made:
        made = {"type": "object", "additionalProperties": False, **made}
    return made
