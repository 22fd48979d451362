"""Prompts of a user, from a file."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyserve.core.errors import ConfigError, cut, quoted

_KEYS = ("prompt", "answer", "family")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a user.

    Attributes:
        place: Its place, for errors.
        prompt: Its text.
        answer: Text that a right response contains; "" if there is none.
        family: Kind of task; figures are shown for each.
    """

    place: str
    prompt: str
    answer: str = ""
    family: str = ""


def load_prompts(path: Path, most: int | None = None) -> list[Prompt]:
    """Read the first `most` prompts of a file, all without: a JSON object a line.

    Raises:
        ConfigError: The file cannot be read, has no prompt, or a line that is something else.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    try:
        # NOTE: only a line feed ends a line of JSON; a text may have others, such as U+2028.
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        number = 1 + content.count(b"\n", 0, error.start)
        raise ConfigError(f"{path}:{number}: is not UTF-8: {error.reason}") from None
    numbered = [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ConfigError(f"{path} has no prompt: write one JSON object a line")
    return [_prompt(place, line) for place, line in numbered[:most]]


def check_distinct(prompts: Iterable[Prompt]) -> None:
    """Raise ConfigError if two prompts are the same: a recording has one response to each."""
    found: dict[str, Prompt] = {}
    for prompt in prompts:
        if (earlier := found.setdefault(prompt.prompt, prompt)) is not prompt:
            raise ConfigError(f"{prompt.place}: has the prompt of {earlier.place} again")


def _prompt(place: str, line: str) -> Prompt:
    try:
        given: Any = json.loads(line)
        json.dumps(given, ensure_ascii=False).encode()
        fault = _fault(given)
    except json.JSONDecodeError as error:
        fault = f"is no JSON: {error.msg} at character {error.colno}"
    except UnicodeEncodeError:
        fault = "has half of a surrogate pair"
    except (ValueError, RecursionError):  # a number of many digits, or many brackets
        fault = "is no JSON that can be read"
    if fault:
        raise ConfigError(
            f'{place}: {fault}: it must be such as {{"prompt": "...", "answer": "...", "family": "..."}},'
            " in which all but the prompt may be left out"
        )
    return Prompt(place, **given)


def _fault(given: Any) -> str:
    """Return why a value is no prompt; empty if it is one."""
    if not isinstance(given, dict):
        return "is no JSON object"
    for key, value in given.items():
        if key not in _KEYS:
            return f"has the key {quoted(key)}, must be {', '.join(_KEYS[:-1])} or {_KEYS[-1]}"
        if not isinstance(value, str):
            return f"{key} is {cut(json.dumps(value), 60)}, must be a string"
    return "" if given.get("prompt") else "has no prompt"
