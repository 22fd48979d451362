"""The shipped tasks: held-out problems in a file, families interleaved so that any prefix is balanced."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from demo.corpus import Family, Split, generate, is_correct
from demo.paths import TASKS

_SEED = 2026


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt and the answer that a response has to end with."""

    id: str
    family: Family
    prompt: str
    answer: str

    def is_solved_by(self, response: str) -> bool:
        """Whether a response ends with the answer."""
        return is_correct(response, self.answer)


def load_tasks(count: int | None = None, path: Path = TASKS) -> list[Task]:
    """Load the first `count` tasks, or all."""
    with path.open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in islice(lines, count)]
    return [Task(r["id"], Family(r["family"]), r["prompt"], r["answer"]) for r in records]


def make_tasks(per_family: int) -> list[Task]:
    """Draw tasks from the held-out split."""
    columns = [generate(_SEED, Split.HELD_OUT, family, per_family) for family in Family]
    return [
        Task(f"{problem.family}-{number:03d}", problem.family, problem.prompt, problem.answer)
        for number, row in enumerate(zip(*columns, strict=True))
        for problem in row
    ]


def write_tasks(per_family: int = 100, path: Path = TASKS) -> None:
    """Write the file of tasks again."""
    lines = [json.dumps(asdict(task)) for task in make_tasks(per_family)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
