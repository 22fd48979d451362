"""Write a preset into a deployment file; the rest of the file, its comments included, stays as it is."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from flyserve.core.errors import ConfigError
from flyserve.whole_file import check_writable, write_whole
from orchestration.deployment.file import Deployment
from services.common.config import load_yaml, parse, parse_yaml


def preset_writer(path: Path, name: str) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that writes a preset under a name; an earlier one of the name is replaced.

    The file and the name are checked now, before the work that finds the preset.

    Raises:
        ConfigError: The file cannot be read, is no deployment file, or the name is no name of a preset.
    """
    _checked(path, name, {})
    check_writable(path)

    def write(preset: Mapping[str, Any]) -> None:
        write_whole(path, _checked(path, name, preset))

    return write


def _checked(path: Path, name: str, preset: Mapping[str, Any]) -> str:
    """Return the text of the file with the preset; raise ConfigError if that is no deployment file."""
    load_yaml(Deployment, path)
    before = path.read_bytes().decode()  # with its line ends
    expected = parse_yaml(before)
    speculation = expected.get("speculation") or {}
    presets = {**(speculation.get("presets") or {}), name: dict(preset)}
    expected = {**expected, "speculation": {**speculation, "presets": presets}}
    parse(Deployment, expected, str(path))
    text = with_preset(before, name, preset)
    with suppress(yaml.YAMLError, ValueError):
        if parse_yaml(text) == expected:
            return text
    found = f"{path}: speculation.presets cannot be changed here"
    raise ConfigError(f"{found}: write speculation as a plain mapping, without anchors and aliases")


def with_preset(text: str, name: str, preset: Mapping[str, Any]) -> str:
    """Return the YAML text of a deployment file with `speculation.presets.NAME`; raises yaml.YAMLError."""
    value = "{" + ", ".join(f"{key}: {json.dumps(each)}" for key, each in preset.items()) + "}"
    key = name if yaml.safe_load(name) == name else json.dumps(name)  # such as null, or 1
    return _with_value(text, yaml.compose(text), ("speculation", "presets", key), value)


def _with_value(text: str, node: Any, keys: tuple[str, ...], value: str) -> str:
    """Return the text in which the value of nested keys below a mapping is `value`, written in one line."""
    entry = (
        next((each for each in node.value if _is_key(each[0], keys[0])), None) if _is_mapping(node) else None
    )
    if entry is not None and len(keys) > 1 and _is_mapping(entry[1]) and entry[1].value:
        return _with_value(text, entry[1], keys[1:], value)
    nested = _nested(keys[1:], value)
    if entry is not None:
        # What is there is replaced: a preset of the name, or an empty mapping.
        start, end = entry[0].end_mark.index, _end(entry[1])
        return f"{text[:start]}: {nested}{text[end:]}"
    line_end = "\r\n" if "\r\n" in text else "\n"
    if not _is_mapping(node):
        return f"{text}{keys[0]}: {nested}{line_end}"
    if node.flow_style:
        place = node.start_mark.index + 1
        return f"{text[:place]}{keys[0]}: {nested}, {text[place:]}"
    # The new line comes before the first key of the mapping, with its indentation.
    first = node.value[0][0].start_mark
    place = first.index - first.column
    return f"{text[:place]}{' ' * first.column}{keys[0]}: {nested}{line_end}{text[place:]}"


def _is_key(node: Any, key: str) -> bool:
    """Check that a node is a key as it is written in YAML: quoted, or plain."""
    return bool(node.value == yaml.safe_load(key) and node.tag == "tag:yaml.org,2002:str")


def _is_mapping(node: Any) -> bool:
    return isinstance(node, yaml.MappingNode)


def _nested(keys: tuple[str, ...], value: str) -> str:
    for key in reversed(keys):
        value = f"{{{key}: {value}}}"
    return value


def _end(node: Any) -> int:
    """Return the end of a value, without the comments after a mapping of several lines."""
    while _is_mapping(node) and not node.flow_style and node.value:
        node = node.value[-1][1]
    return int(node.end_mark.index)
