"""Sends the problems, several at a time, and keeps every answer at once."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.quality.records import Record, RecordFile, find_rescues
from benchmarks.quality.settings import Setting
from demo.tasks import Task
from demo.tokenizer import render
from fly.errors import NotReady, Overloaded
from flyserve.client import Client

_MAX_NEW_TOKENS = 512
_TIMEOUT_S = 300.0
_TRIES = 5
_PAUSE_S = 2.0

Advance = Callable[[], None]


@dataclass(frozen=True)
class Work:
    """Problems that one setting still has to meet."""

    setting: Setting
    file: RecordFile
    tasks: tuple[Task, ...]


def plan_work(settings: Sequence[tuple[Setting, Sequence[Task]]], folder: Path) -> list[Work]:
    """What is left to do; a setting that several groups share is planned once, with all its problems."""
    wanted: dict[str, tuple[Setting, dict[str, Task]]] = {}
    for setting, tasks in settings:
        _, known = wanted.setdefault(setting.key, (setting, {}))
        known.update((task.id, task) for task in tasks)
    works = []
    for key, (setting, known) in wanted.items():
        file = RecordFile(folder / f"{key}.jsonl")
        works.append(Work(setting, file, tuple(t for t in known.values() if t.id not in file.records)))
    return works


def run_work(client: Client, work: Work, concurrency: int, advance: Advance) -> None:
    """Sends what is left of one setting; on an error what was answered is kept.

    Raises:
        FlyServeError: The deployment rejected a request, or does not answer for long.
    """
    pool = ThreadPoolExecutor(concurrency)
    try:
        for done in as_completed([pool.submit(_answer, client, work.setting, task) for task in work.tasks]):
            work.file.append(done.result())
            advance()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _answer(client: Client, setting: Setting, task: Task) -> Record:
    for _ in range(_TRIES - 1):
        try:
            return measure(client, setting, task)
        except Overloaded as error:
            time.sleep(error.retry_after_s)
        except NotReady:
            time.sleep(_PAUSE_S)
    return measure(client, setting, task)


def measure(client: Client, setting: Setting, task: Task) -> Record:
    """One problem under one setting; the seed is the problem's, so that all settings draw the same noise."""
    sampling = replace(setting.sampling, seed=seed_of(task))
    start = time.perf_counter()
    response = client.generate(
        render(task.prompt), _MAX_NEW_TOKENS, sampling, setting.speculation, timeout_s=_TIMEOUT_S
    )
    return Record(
        problem=task.id,
        is_solved=task.is_solved_by(response.text),
        seconds=time.perf_counter() - start,
        response=response.text,
        rescues=find_rescues(response.tokens),
        statistics=response.statistics,
    )


def seed_of(task: Task) -> int:
    """The number at the end of the problem's id."""
    return int(task.id.rpartition("-")[2])
