"""The problems, and the response to each of them under a setting."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from benchmarks.harness.client import generate
from demo.corpus import Family, Split, problems
from flyserve.bench.progress import Advance
from flyserve.bench.tasks import Task, render
from flyserve.client import Client
from flyserve.core.request import SpeculationParams
from flyserve.core.response import Statistics

_SEED = 4_2026
_MAX_NEW_TOKENS = 512


def draw_tasks(split: Split, count: int) -> list[Task]:
    """Return the first `count` problems of a split, families in turn; every run draws the same."""
    sources = [(family, problems(_SEED, split, family)) for family in Family]
    drawn = (
        Task(f"{split.value}-{family.value}-{number:05d}", family, problem.prompt, problem.answer)
        for number in range(count)
        for family, source in sources
        for problem in (next(source),)
    )
    return list(islice(drawn, count))


@dataclass(frozen=True, slots=True)
class Record:
    """One problem under one setting."""

    problem: str
    is_solved: bool
    seconds: float
    statistics: Statistics


def measure_all(
    client: Client, way: SpeculationParams, tasks: Sequence[Task], concurrency: int, advance: Advance
) -> list[Record]:
    """Send all problems under one way of decoding, several at a time."""

    def measure(task: Task) -> Record:
        response, seconds = generate(client, render(task.prompt), _MAX_NEW_TOKENS, way)
        advance()
        return Record(task.id, task.is_solved_by(response.text), seconds, response.statistics)

    pool = ThreadPoolExecutor(concurrency)
    try:
        return list(pool.map(measure, tasks))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
