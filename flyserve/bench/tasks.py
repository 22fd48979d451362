"""The shipped tasks, families interleaved so that any prefix is balanced; or the prompts of a file."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from flyserve.core.errors import ConfigError

TASKS = Path(__file__).with_name("held_out.jsonl")
_ANSWER = "Answer:"


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt, and the answer that a response has to end with.

    Attributes:
        family: Kind of a shipped task; empty for a prompt of a user, whose answer a response has to contain.
        answer: Empty if the user names none.
    """

    id: str
    family: str
    prompt: str
    answer: str

    def is_solved_by(self, response: str) -> bool:
        """Check that a response has the answer; without an answer, none has."""
        if self.family:
            return is_correct(response, self.answer)
        return bool(self.answer) and self.answer in response


def load_tasks(count: int | None = None, path: Path = TASKS) -> list[Task]:
    """Load the first `count` tasks, or all."""
    with path.open(encoding="utf-8") as lines:
        return [Task(**json.loads(line)) for line in islice(lines, count)]


def load_prompts(path: Path, count: int) -> list[Task]:
    """Load the first `count` prompts of a file. A line is a JSON object: `prompt`, perhaps `answer`.

    Raises:
        ConfigError: The file cannot be read, has no prompt, or a line is something else.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts: {path} cannot be read: {error}") from None
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ConfigError(f"--prompts: {path} has no prompt: write one JSON object a line")
    return [_own_task(f"{path}:{number}", line) for number, line in numbered[:count]]


def _own_task(place: str, line: str) -> Task:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError):
        given = None
    texts = {"answer": "", **given} if isinstance(given, dict) else {}
    are_texts = all(isinstance(text, str) for text in texts.values())
    if texts.keys() != {"prompt", "answer"} or not are_texts or not texts["prompt"]:
        raise ConfigError(
            f'--prompts: {place}: must be a JSON object such as {{"prompt": "...", "answer": "..."}},'
            " in which the answer may be left out"
        )
    return Task(place, "", texts["prompt"], texts["answer"])


def is_correct(response: str, answer: str) -> bool:
    """Check that a response ends with `Answer:` and the answer; spacing does not count."""
    _, marker, given = response.rpartition(_ANSWER)
    return bool(marker) and given.split() == answer.split()


def render(prompt: str) -> str:
    """Return the text that the demo's chat template makes of one user message."""
    return f"{prompt}\n"
