"""Configuration: frozen models made from files and flags; unknown keys are errors that name the nearest."""

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from fly.errors import ConfigError
from services.common.model_faults import MESSAGE_PREFIX, field_names, nearest


class Config(BaseModel):
    """Base of every configuration section."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, strict=False)


C = TypeVar("C", bound=Config)


def _named_switch(value: Any) -> Any:
    """YAML reads a bare `on` or `off` as a truth value: its name again."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


AutoSwitch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_named_switch)]
"""Something that is on, off, or decided by the program."""


def parse(model: type[C], data: Any, source: str) -> C:
    """Builds a configuration from plain data.

    Args:
        model: The section.
        data: Mappings and scalars, as YAML gives them.
        source: Where it comes from, for messages.

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
        faults = "; ".join(_describe(model, fault) for fault in error.errors())
        raise ConfigError(f"{source}: {faults}") from None


def mapping(text: str, source: str) -> Any:
    """Reads a flag that holds a mapping, as YAML or JSON.

    Raises:
        ConfigError: It is neither.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: is not YAML: {' '.join(str(error).split())}") from None


def load_yaml(model: type[C], path: Path) -> C:
    """Reads a configuration file.

    Raises:
        ConfigError: The file is missing, is not YAML, or breaks a limit.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        told = "" if _keeps_secrets(model) else f": {' '.join(str(error).split())}"
        raise ConfigError(f"{path}: is not YAML{told}") from None
    return parse(model, data, str(path))


def _describe(model: type[BaseModel], fault: Any) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    message = str(fault["msg"]).removeprefix(MESSAGE_PREFIX)
    if not key:
        return message
    if fault["type"] == "extra_forbidden":
        return f"{key}: unknown key{_nearest(model, fault['loc'])}"
    if _keeps_secrets(model):
        return f"{key}: {message}"
    return f"{key}: is {fault['input']!r}: {message}"


def _keeps_secrets(model: type[BaseModel]) -> bool:
    """Whether no message may show what was found."""
    return bool(model.model_config.get("hide_input_in_errors"))


def _nearest(model: type[BaseModel], location: tuple[Any, ...]) -> str:
    keys = field_names(model, location)
    near = nearest(str(location[-1]), keys)
    return f", did you mean {near!r}?" if near else f", one of {', '.join(sorted(keys))}"
