"""The problems, and the response to each of them under a setting."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import islice

from benchmarks.harness.client import generate
from benchmarks.scenarios.quality.settings import Setting
from demo.corpus import Family, Split, problems
from fly.response import Statistics
from flyserve.bench.progress import Advance
from flyserve.bench.tasks import Task, render
from flyserve.client import Client

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
    client: Client, setting: Setting, tasks: Sequence[Task], concurrency: int, advance: Advance
) -> list[Record]:
    """Send all problems under one setting, several at a time."""
    pool = ThreadPoolExecutor(concurrency)
    try:
        sent = [pool.submit(measure, client, setting, task) for task in tasks]
        for done in as_completed(sent):
            done.result()
            advance()
        return [each.result() for each in sent]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def measure(client: Client, setting: Setting, task: Task) -> Record:
    """Send one problem under one setting; its number is the seed, so all settings draw the same noise."""
    sampling = replace(setting.sampling, seed=seed_of(task))
    response, seconds = generate(
        client, render(task.prompt), _MAX_NEW_TOKENS, setting.speculation, sampling=sampling
    )
    return Record(
        problem=task.id,
        is_solved=task.is_solved_by(response.text),
        seconds=seconds,
        statistics=response.statistics,
    )


def seed_of(task: Task) -> int:
    """Return the number at the end of the problem's id."""
    return int(task.id.rpartition("-")[2])
