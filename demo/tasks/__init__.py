"""The shipped tasks: how their file is drawn from the corpus. `flyserve.bench.tasks` reads it."""

import json
from dataclasses import asdict
from pathlib import Path

from demo.corpus import Family, Split, generate
from flyserve.bench.tasks import TASKS, Task, load_tasks

__all__ = ["Task", "load_tasks", "make_tasks", "write_tasks"]

_SEED = 2026


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
