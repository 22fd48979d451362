"""The problems, and the response to each of them under a setting."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import islice

from benchmarks.harness.client import generate
from benchmarks.scenarios.quality.settings import Setting
from demo.corpus import Family, Split, problems
from fly.response import Statistics
from fly.types import Token, Verdict
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


def find_rescues(tokens: Iterable[Token]) -> tuple[Rescue, ...]:
    """Return every rescued token of a response with its place in the text."""
    rescues, start = [], 0
    for token in tokens:
        if token.verdict is Verdict.RESCUED:
            assert token.entropy is not None, "a rule with rescues needs entropies"
            rescues.append(Rescue(start, token.text, token.choice_text, token.entropy))
        start += len(token.text)
    return tuple(rescues)


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
        response=response.text,
        rescues=find_rescues(response.tokens),
        statistics=response.statistics,
    )


def seed_of(task: Task) -> int:
    """Return the number at the end of the problem's id."""
    return int(task.id.rpartition("-")[2])
