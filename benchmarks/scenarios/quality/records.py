"""Responses of every problem and setting: sent several at a time, each kept at once as a line of JSON."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from benchmarks.harness.client import generate
from benchmarks.scenarios.quality.settings import Setting
from fly.errors import NotReady, Overloaded
from fly.response import Statistics
from fly.types import Token, Verdict
from flyserve.bench.progress import Advance
from flyserve.bench.tasks import Task, render
from flyserve.client import Client

_MAX_NEW_TOKENS = 512
_TRIES = 5
_PAUSE_S = 2.0


@dataclass(frozen=True, slots=True)
class Rescue:
    """A token that FLy accepted against the target's choice.

    Attributes:
        start: Offset of its text in the response.
        text: Its text.
        choice: Text of the target's choice.
        entropy: Entropy of the target at this position.
    """

    start: int
    text: str
    choice: str
    entropy: float

    @property
    def is_content(self) -> bool:
        """True if either text has a digit: in these tasks wording is free, but a digit never is."""
        return any(character.isdigit() for character in self.text + self.choice)


@dataclass(frozen=True, slots=True)
class Record:
    """One problem under one setting."""

    problem: str
    is_solved: bool
    seconds: float
    response: str
    rescues: tuple[Rescue, ...]
    statistics: Statistics


_RECORD = TypeAdapter(Record)


def find_rescues(tokens: Iterable[Token]) -> tuple[Rescue, ...]:
    """Return every rescued token of a response with its place in the text."""
    rescues, start = [], 0
    for token in tokens:
        if token.verdict is Verdict.RESCUED:
            rescues.append(Rescue(start, token.text, token.choice_text, token.entropy))
        start += len(token.text)
    return tuple(rescues)


class RecordFile:
    """The records of one setting; an incomplete last line is dropped and measured again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.records: dict[str, Record] = {}
        if path.exists():
            self._read()

    def append(self, record: Record) -> None:
        """Write a record at once."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(_RECORD.dump_json(record) + b"\n")
        self.records[record.problem] = record

    def _read(self) -> None:
        whole, _, incomplete = self._path.read_bytes().rpartition(b"\n")
        if incomplete:
            self._path.write_bytes(whole + b"\n" * bool(whole))
        for line in whole.splitlines():
            record = _RECORD.validate_json(line)
            self.records[record.problem] = record


@dataclass(frozen=True)
class Work:
    """Problems that are missing under one setting."""

    setting: Setting
    file: RecordFile
    tasks: tuple[Task, ...]


def plan_work(settings: Sequence[tuple[Setting, Sequence[Task]]], folder: Path) -> list[Work]:
    """Return what is missing; a setting of several groups occurs once, with all its problems."""
    wanted: dict[str, tuple[Setting, dict[str, Task]]] = {}
    for setting, tasks in settings:
        _, by_id = wanted.setdefault(setting.key, (setting, {}))
        by_id.update((task.id, task) for task in tasks)
    works = []
    for key, (setting, by_id) in wanted.items():
        file = RecordFile(folder / f"{key}.jsonl")
        missing = tuple(task for task in by_id.values() if task.id not in file.records)
        works.append(Work(setting, file, missing))
    return works


def run_work(client: Client, work: Work, concurrency: int, advance: Advance) -> None:
    """Send the missing problems of one setting; after an error the received responses are kept.

    Raises:
        FlyServeError: The deployment rejected a request, or did not answer several times.
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
    """Send one problem under one setting; its number is the seed, so all settings draw the same noise."""
    sampling = replace(setting.sampling, seed=seed_of(task))
    response, seconds = generate(
        client, render(task.prompt), _MAX_NEW_TOKENS, setting.speculation, sampling=sampling
    )
    return Record(
        problem=task.id,
        is_solved=task.is_solved_by(response.text),
        seconds=seconds,
        response=response.text,
        rescues=find_rescues(response.tokens),
        statistics=response.statistics,
    )


def seed_of(task: Task) -> int:
    """Return the number at the end of the problem's id."""
    return int(task.id.rpartition("-")[2])
