"""Command-line flags of a service, generated from its configuration class."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, TypeVar

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from flyserve.core.errors import ConfigError
from services.common.config import Config, parse, parse_yaml, read_yaml, yaml_fault
from services.common.sections import Engines, keys_of, leaves, section_of, sections_of

C = TypeVar("C", bound=Config)
EXIT_BAD_INPUT = 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(message)


def configure(config_class: type[C] | Engines[C], summary: str, arguments: Sequence[str] | None = None) -> C:
    """Build a service's configuration from its command line; end the process if that is not possible.

    Every key has a flag: `max_sequences` is `--max-sequences`, a key of a section is dotted
    (`--telemetry.metrics-port`), and a whole section takes YAML (`--telemetry '{metrics_port: 9400}'`). The
    flag of a list has the singular (`--target`) and may repeat. A flag overrides the file that `--config`
    names.
    """
    parser = _Parser(
        usage=f"python -m {_package()} [FLAG VALUE]...",
        description=summary,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file; the other flags override it.")
    for key, field in _flags(sections_of(config_class)):
        _add_flag(parser, key, field)
    given = vars(parser.parse_args(arguments))
    file: Path | None = given.pop("config", None)
    try:
        data = {} if file is None else read_yaml(file) or {}
        if isinstance(data, dict):
            # NOTE: a section first, then its keys, in whatever order the flags are given.
            for key, value in sorted(given.items(), key=lambda item: item[0].count(".")):
                _set(data, key.split("."), value)
        return parse(config_class, data, "flags" if file is None else str(file))
    except ConfigError as error:
        fail(str(error))


def fail(message: str) -> NoReturn:
    """End the process with one line on stderr and exit status 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(EXIT_BAD_INPUT)


def _package() -> str:
    """Return the package that runs as this program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.parent if spec is not None else sys.argv[0]


def _flags(classes: Sequence[type[BaseModel]]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key that has a flag: plain keys first, then each section as a whole and its keys."""
    yield from sorted(keys_of(classes).items(), key=lambda key: section_of(key[1].annotation) is not None)
    yield from (leaf for leaf in leaves(classes) if "." in leaf[0])


def _add_flag(parser: argparse.ArgumentParser, key: str, field: FieldInfo) -> None:
    types = {
        getattr(t, "__origin__", t) for t in (field.annotation, *getattr(field.annotation, "__args__", ()))
    }
    is_mapping = any(
        isinstance(t, type) and (issubclass(t, BaseModel | dict) or is_dataclass(t)) for t in types
    )
    flag = f"--{(key.removesuffix('s') if tuple in types else key).replace('_', '-')}"
    help_text = _help(field).replace("%", "%%")
    if tuple in types:
        parser.add_argument(flag, dest=key, action="append", metavar="VALUE", help=help_text)
        return

    def read(text: str) -> Any:
        if text == "null" and NoneType in types:
            return None
        return _mapping(text) if is_mapping else text

    parser.add_argument(flag, dest=key, type=read, metavar="YAML" if is_mapping else "VALUE", help=help_text)


def _help(field: FieldInfo) -> str:
    text = " ".join((field.description or "").split())
    is_shown = not field.is_required() and isinstance(field.default, str | int | float)
    return f"{text} Default: {field.default}." if is_shown and field.default != "" else text


def _mapping(text: str) -> Any:
    """Read a flag whose value is a mapping in YAML or JSON."""
    try:
        return parse_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        # NOTE: argparse would replace any other error's text by its own.
        raise argparse.ArgumentTypeError(f"is not YAML: {yaml_fault(error)}") from None


def _set(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value by its path; the sections on the way are made where they are absent."""
    *sections, name = path
    for section in sections:
        if not isinstance(data.get(section), dict):
            data[section] = {}
        data = data[section]
    data[name] = value
