"""Prompts of a user, from a file."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flyserve.core.errors import ConfigError

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
        # NOTE: only a line feed ends a line of JSON; a text may have others, such as U+2028.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
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
    except (ValueError, RecursionError):  # UnicodeEncodeError: half of a surrogate pair
        given = None
    is_known = isinstance(given, dict) and given.keys() <= {*_KEYS}
    if not is_known or not given.get("prompt") or not all(isinstance(text, str) for text in given.values()):
        raise ConfigError(
            f'{place}: must be a JSON object such as {{"prompt": "...", "answer": "...", "family": "..."}},'
            " in which all but the prompt may be left out"
        )
    return Prompt(place, **given)
