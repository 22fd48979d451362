"""The shipped tasks: held-out problems in a file, families interleaved so that any prefix is balanced."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

TASKS = Path(__file__).with_name("held_out.jsonl")
_ANSWER = "Answer:"


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt and the answer that a response has to end with."""

    id: str
    family: str
    prompt: str
    answer: str

    def is_solved_by(self, response: str) -> bool:
        """Check that a response ends with the answer."""
        return is_correct(response, self.answer)


def load_tasks(count: int | None = None, path: Path = TASKS) -> list[Task]:
    """Load the first `count` tasks, or all."""
    with path.open(encoding="utf-8") as lines:
        return [Task(**json.loads(line)) for line in islice(lines, count)]


def is_correct(response: str, answer: str) -> bool:
    """Check that a response ends with `Answer:` and the answer; spacing does not count."""
    _, marker, given = response.rpartition(_ANSWER)
    return bool(marker) and given.split() == answer.split()


def render(prompt: str) -> str:
    """Return the text that the demo's chat template makes of one user message."""
    return f"{prompt}\n"
