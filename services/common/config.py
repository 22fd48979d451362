"""Configuration: frozen sections read from files and flags; an unknown key is an error."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, core_schema

from flyserve.core.errors import ConfigError, one_line
from services.common.config_faults import describe_fault
from services.common.sections import Engines, sections_of

_NOT_MADE = "default_factory_not_called"
"""Kind of pydantic's fault of a default that was not made because another key has a fault."""


class Config(BaseModel):
    """Base of every section: the only declaration of its keys, defaults, limits and descriptions.

    The docstring below each field is the key's description in help texts, in the chart's schema and in
    docs/reference/configuration.md.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, strict=False, use_attribute_docstrings=True
    )

    reserved: ClassVar[Mapping[str, str]] = {}
    """Keys of the service that this section does not accept, each with the reason."""


C = TypeVar("C", bound=Config)


_MERGE = "tag:yaml.org,2002:merge"
"""Tag of the key `<<`, which a mapping may have several times."""


class RepeatedKey(yaml.YAMLError):
    """A mapping has a key twice; the library would drop the first value without an error."""


class _Loader(yaml.SafeLoader):
    """Reads plain data; raises RepeatedKey."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                raise RepeatedKey(f"key {key.value!r} is in line {lines[name]} and again in line {line}")
            lines[name] = line
        return node


def _name_switch(value: Any) -> Any:
    """Return the name of a switch: YAML reads a bare `on` or `off` as a boolean."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


AutoSwitch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_name_switch)]
"""A feature that is on, off, or decided by the program."""


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


def parse(model: type[C] | Engines[C], data: Any, source: str) -> C:
    """Build a configuration from mappings and scalars, as YAML gives them; `source` names their origin.

    Raises:
        ConfigError: In one line: the key, the value found and the limit, for every fault.
    """
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: must be a mapping of keys, found {type(data).__name__}")
    try:
        return model.validate(data) if isinstance(model, Engines) else model.model_validate(data)
    except ValidationError as error:
        roots = sections_of(model)
        keeps_secrets = any(map(_keeps_secrets, roots))
        found = [fault for fault in error.errors() if fault["type"] != _NOT_MADE]
        faults = "; ".join(describe_fault(roots, fault, keeps_secrets) for fault in found)
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
        return parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        is_secret = keeps_secrets and not isinstance(error, RepeatedKey)
        quoted = "" if is_secret else f": {yaml_fault(error)}"
        raise ConfigError(f"{path}: is not YAML{quoted}") from None


def parse_yaml(text: str) -> Any:
    """Return the plain data of a YAML text.

    Raises:
        YAMLError: It is not YAML, or a mapping has a key twice.
        ValueError: A value looks like a date or a number that does not exist, such as 2026-02-30.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deep") from None


def yaml_fault(error: yaml.YAMLError | ValueError) -> str:
    """Return the fault of a YAML text in one line, without the name that the library gives to texts."""
    return one_line(error).replace('in "<unicode string>", ', "in ")


def _keeps_secrets(model: type[BaseModel]) -> bool:
    """Return whether no message may quote the values of this section."""
    return bool(model.model_config.get("hide_input_in_errors"))
