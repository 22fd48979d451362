"""Configuration: frozen sections read from files and flags; an unknown key is an error."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from fly.errors import ConfigError

MESSAGE_PREFIX = "Value error, "
"""Prefix that pydantic adds to the messages of a model's own validators."""

_NOT_MADE = "default_factory_not_called"
"""Kind of pydantic's fault of a default that was not made because another key has a fault."""


_LONGEST_NAME = 64
"""Characters of a name above which nothing similar is looked for: that takes the square of them."""


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in the type of a field, such as an optional section or a list of sections."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = map(section_of, getattr(annotation, "__args__", ()))
    return next((section for section in inner if section is not None), None)


def section_at(model: type[BaseModel], location: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the section of a fault, such as that of `limits` for `limits.choces`; None if there is none."""
    section: type[BaseModel] | None = model
    for part in location[:-1]:
        if section is not None and not isinstance(part, int):
            field = section.model_fields.get(part)
            section = None if field is None else section_of(field.annotation)
    return section


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that begins with the name or is most similar to it; a long name has none."""
    if len(name) > _LONGEST_NAME:
        return None
    known = list(candidates)
    begun = [candidate for candidate in known if len(name) > 1 and candidate.startswith(name)]
    near = begun or difflib.get_close_matches(name, known, n=1)
    return near[0] if near else None


class Config(BaseModel):
    """Base of every section: the only declaration of its keys, defaults, limits and descriptions.

    The docstring below each field is the key's description in help texts, in the chart's schema and in
    docs/configuration.md.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, strict=False, use_attribute_docstrings=True
    )

    reserved: ClassVar[Mapping[str, str]] = {}
    """Keys of the service that this section does not accept, each with the reason."""


C = TypeVar("C", bound=Config)


def _name_switch(value: Any) -> Any:
    """Return the name of a switch: YAML reads a bare `on` or `off` as a boolean."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


AutoSwitch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_name_switch)]
"""A feature that is on, off, or decided by the program."""


def leaves(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted name and the declaration of every key, those of nested sections included."""
    for name, field in section.model_fields.items():
        if (inner := section_of(field.annotation)) is not None:
            yield from leaves(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def changed_values(config: Config, section: type[Config]) -> dict[str, Any]:
    """Return the values of the keys of `section` that differ from their defaults, as plain data."""
    keys = set(section.model_fields) & set(type(config).model_fields)
    return config.model_dump(mode="json", include=keys, exclude_defaults=True)


class OneOf:
    """Annotation of a key of type str that accepts only these names, such as the keys of a table."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.literal_schema(self._names)


def parse(model: type[C], data: Any, source: str) -> C:
    """Build a configuration from mappings and scalars, as YAML gives them; `source` names their origin.

    Raises:
        ConfigError: In one line: the key, the value found and the limit, for every fault.
    """
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: must be a mapping of keys, found {type(data).__name__}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = [fault for fault in error.errors() if fault["type"] != _NOT_MADE]
        faults = "; ".join(_describe(model, fault) for fault in found)
        raise ConfigError(f"{source}: {faults}") from None


def load_yaml(model: type[C], path: Path) -> C:
    """Read a configuration file.

    Raises:
        ConfigError: The file is missing, is not YAML, or breaks a limit.
    """
    return parse(model, read_yaml(path, _keeps_secrets(model)), str(path))


def read_yaml(path: Path, keeps_secrets: bool = False) -> Any:
    """Return the plain data of a YAML file.

    Raises:
        ConfigError: The file is missing or is not YAML; the message quotes it unless it keeps secrets.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        quoted = "" if keeps_secrets else f": {' '.join(str(error).split())}"
        raise ConfigError(f"{path}: is not YAML{quoted}") from None


def _describe(model: type[BaseModel], fault: Any) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix(MESSAGE_PREFIX)
    if not key:
        return message
    if fault["type"] == "extra_forbidden":
        return f"{key}: {_explain_unknown(model, fault['loc'])}"
    if fault["type"] == "missing":
        return f"{key}: is required"
    if fault["type"] == "value_error" and section_at(model, (*fault["loc"], "")) is not None:
        # NOTE: of the section as a whole; its message begins with the key.
        return f"{key}.{message}"
    if _keeps_secrets(model):
        return f"{key}: {message}"
    return f"{key}: is {fault['input']!r}: {message}"


def _keeps_secrets(model: type[BaseModel]) -> bool:
    """Return whether no message may quote the values of this section."""
    return bool(model.model_config.get("hide_input_in_errors"))


def _explain_unknown(model: type[BaseModel], location: tuple[Any, ...]) -> str:
    """Explain why a key is not accepted: it is reserved, or unknown; then name the nearest key."""
    section, name = section_at(model, location), str(location[-1])
    if name in (reserved := getattr(section, "reserved", {})):
        return f"cannot be set here: {reserved[name]}"
    keys = [] if section is None else list(section.model_fields)
    near = nearest(name, keys)
    return "unknown key" + (f", did you mean {near!r}?" if near else f", one of {', '.join(sorted(keys))}")
