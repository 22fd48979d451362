"""Tasks that are drawn from the corpus: the shipped ones, which `flyserve.bench.tasks` reads, and more."""

import json
from dataclasses import asdict
from pathlib import Path

from demo.corpus import Family, Split, generate
from flyserve.bench.tasks import TASKS, Task, load_tasks

__all__ = ["Task", "evaluation_tasks", "load_tasks", "make_tasks", "write_tasks"]

_SEED, _EVALUATION_SEED = 2026, 4_2026


def make_tasks(per_family: int) -> list[Task]:
    """Draw tasks from the held-out split."""
    return _drawn(_SEED, Split.HELD_OUT, per_family, "{0}-{1:03d}")


def evaluation_tasks(split: Split, count: int) -> list[Task]:
    """Return the first `count` problems of a split, families in turn; every call draws the same."""
    per_family = -(-count // len(Family))
    return _drawn(_EVALUATION_SEED, split, per_family, f"{split.value}-{{0}}-{{1:05d}}")[:count]


def _drawn(seed: int, split: Split, per_family: int, name: str) -> list[Task]:
    columns = [generate(seed, split, family, per_family) for family in Family]
    return [
        Task(name.format(problem.family, number), problem.family, problem.prompt, problem.answer)
        for number, row in enumerate(zip(*columns, strict=True))
        for problem in row
    ]


def write_tasks(per_family: int = 100, path: Path = TASKS) -> None:
    """Write the file of tasks again."""
    lines = [json.dumps(asdict(task)) for task in make_tasks(per_family)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
