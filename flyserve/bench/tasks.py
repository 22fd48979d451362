"""The shipped tasks, families interleaved so that any prefix is balanced; or the prompts of a file."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from flyserve.calibration.prompts import load_prompts

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

    def is_solved_by(self, response: str) -> bool | None:
        """Return whether a response has the answer; None if the task names none."""
        if self.family:
            return is_correct(response, self.answer)
        return self.answer in response if self.answer else None


def load_tasks(count: int | None = None, path: Path = TASKS) -> list[Task]:
    """Load the first `count` tasks, or all."""
    with path.open(encoding="utf-8") as lines:
        return [Task(**json.loads(line)) for line in islice(lines, count)]


def own_tasks(path: Path, count: int | None = None) -> list[Task]:
    """Load the first `count` prompts of a user's file, or all; raise ConfigError as `load_prompts` does."""
    return [Task(own.place, "", own.prompt, own.answer) for own in load_prompts(path, count)]


def is_correct(response: str, answer: str) -> bool:
    """Check that a response ends with `Answer:` and the answer; spacing does not count."""
    _, marker, given = response.rpartition(_ANSWER)
    return bool(marker) and given.split() == answer.split()


def render(prompt: str) -> str:
    """Return the text that the demo's chat template makes of one user message."""
    return f"{prompt}\n"
