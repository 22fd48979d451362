"""Write `docs/reference/configuration.md` from the configuration classes: `make configuration` runs it."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from orchestration.deployment import reserved
from orchestration.deployment.file import Deployment
from services.common.sections import engine_of, keys_of, named_sections, sections_of
from tools.chart_schema import SETTLED, plain_schemas

OUTPUT = Path(__file__).parent.parent / "docs" / "reference" / "configuration.md"

_INTRODUCTION = """# Configuration

Generated from the configuration classes by `make generate`; do not edit.

A deployment is one YAML file, which `flyserve up`, `flyserve apply` and `flyserve router` read. The
[chart](../kubernetes/install.md) has the same keys as values, except those marked *not in the chart*. An
unknown key is an error that names the nearest one. A key that only other engines of a tier have is an
error, too.

Without Ray, `python -m services.target`, `services.drafter`, `services.lookup` and `python -m router`
take the keys of their section as flags: `max_sequences` is `--max-sequences`, and a key of a nested section
is dotted (`--limits.max-new-tokens`). `--config FILE` reads them from YAML instead; `--help` lists them all.

Times are in seconds.
"""
_RESERVED = """## Keys that a deployment does not set

The services have them as flags. In a deployment file they are errors, because something else sets them.
"""
_HEAD = "| key | default | limits | meaning |\n|---|---|---|---|\n"


def main() -> None:
    OUTPUT.write_text(rendered(), encoding="utf-8")


def rendered() -> str:
    """Return the page."""
    sections = {name: sections_of(field.annotation) for name, field in Deployment.model_fields.items()}
    page = [
        _INTRODUCTION,
        "## Top level\n",
        _table(_rows([Deployment], "", [n for n, s in sections.items() if not s])),
    ]
    for name, section in sections.items():
        if section:
            description = Deployment.model_fields[name].description
            page += [f"## `{name}`\n", f"{_text(description)}\n", _table(_rows(section, f"{name}."))]
    page += [_RESERVED, _reasons("every replica", reserved.REPLICA)]
    page += [_reasons("a router", reserved.ROUTER), _reasons("`telemetry`", reserved.TELEMETRY)]
    return "\n".join(page)


def _table(rows: Iterable[str]) -> str:
    return _HEAD + "".join(rows)


def _rows(union: Sequence[type[BaseModel]], prefix: str, names: Sequence[str] = ()) -> Iterator[str]:
    """Yield a line for every key, the required ones first; a nested section has a line before its keys."""
    schemas, fields = plain_schemas(union), keys_of(union)
    for name in sorted(names or fields, key=lambda name: not fields[name].is_required()):
        field, key = fields[name], f"{prefix}{name}"
        meaning = " ".join([_text(field.description), *_marks(union, name, key)])
        inner = sections_of(field.annotation)
        limits = "section" if inner else _limits(schemas[name])
        yield f"| `{key}` | {_default(field)} | {limits} | {meaning} |\n"
        if inner:
            yield from _rows(inner, f"{key}.")
        if named := named_sections(field.annotation):
            yield from _rows(named, f"{key}.NAME.")


def _marks(union: Sequence[type[BaseModel]], name: str, key: str) -> Iterator[str]:
    """Yield the engines that have a key, if not all have it, and that the chart does not have it."""
    having = [section for section in union if name in section.model_fields]
    if len(having) < len(union):
        engines = " or ".join(f"`{engine_of(section)}`" for section in having)
        yield f"*Only with engine {engines}.*"
    if _is_settled(key):
        yield "*Not in the chart.*"


def _is_settled(key: str) -> bool:
    return any(key == settled or key.startswith(f"{settled}.") for settled in SETTLED)


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "required"
    if field.default_factory is not None or isinstance(value, BaseModel):
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value) if not isinstance(value, str) else value


def _limits(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if isinstance(value, str))
    if "enum" in (items := schema.get("items", {})):
        return f"list of {_limits(items)}"
    parts = [
        f"{words} {schema[name]}"
        for name, words in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("minLength", "length at least"),
            ("maxLength", "length at most"),
        )
        if name in schema
    ]
    kinds = schema.get("type", "")
    kind = kinds if isinstance(kinds, str) else next(kind for kind in kinds if kind != "null")
    name = f", or `{schema['pattern'].strip('^$')}`" if {"integer", "string"} <= {*kinds} else ""
    return ", ".join([kind, *parts]) + name


def _reasons(process: str, reasons: Mapping[str, str]) -> str:
    return f"Of {process}:\n\n" + "".join(f"- `{key}`: {reason}.\n" for key, reason in reasons.items())


def _text(description: str | None) -> str:
    return " ".join((description or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
