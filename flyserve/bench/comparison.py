"""Compare plain, exact, FLy, and FLy with sub-drafter on the shipped tasks, interleaved task by task."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import NamedTuple, TypeVar
from uuid import uuid4

from rich import box
from rich.console import Console
from rich.table import Table

from flyserve.bench.progress import Advance, progress_bar
from flyserve.bench.statistics import Interval, bootstrap, share, speed, tau, total
from flyserve.bench.tasks import Task, render
from flyserve.chat_prompt import check_room, prompt_tokens
from flyserve.client import Client
from flyserve.core.request import SpeculationParams
from flyserve.core.response import Statistics
from flyserve.core.types import Mode


@dataclass(frozen=True, slots=True)
class Measurement:
    """One task under one setting.

    Attributes:
        problem: The task's id.
        seconds: Time from the call to the whole response, as the client sees it.
        is_solved: True if the response has the right answer; None if the task names none.
        statistics: Statistics as the server reports them.
    """

    problem: str
    seconds: float
    is_solved: bool | None
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one setting.

    Attributes:
        setting: Its name.
        problems: Number of tasks measured.
        tokens_per_s: All tokens divided by all seconds.
        median_tokens_per_s: Median over the tasks.
        speed_up: `tokens_per_s` divided by the baseline's in the same run.
        tau: Tokens emitted in rounds with a draft, divided by the number of these rounds.
        rescued_share: Rescued tokens divided by emitted tokens.
        supplied_share: Draft tokens supplied by the sub-drafter divided by draft tokens.
        forwards_per_token: Drafter forwards divided by emitted tokens.
        accuracy: Solved tasks divided by those with an answer; None without any.
        lost: Tasks that the baseline solved and this setting did not.
        gained: Tasks that this setting solved and the baseline did not.
    """

    setting: str
    problems: int
    tokens_per_s: float
    median_tokens_per_s: float
    speed_up: Interval
    tau: float
    rescued_share: float
    supplied_share: float
    forwards_per_token: float
    accuracy: float | None
    lost: int
    gained: int


def summarize(setting: str, runs: Sequence[Measurement], baseline: Sequence[Measurement]) -> Summary:
    """Summarize one setting against the baseline: the same tasks in the same order, at least one."""
    emitted = total(runs, lambda s: s.emitted)
    pairs = list(zip(runs, baseline, strict=True))
    verdicts = [run.is_solved for run in runs if run.is_solved is not None]
    return Summary(
        setting=setting,
        problems=len(runs),
        tokens_per_s=speed(runs),
        median_tokens_per_s=median(speed([run]) for run in runs),
        speed_up=bootstrap(pairs, _speed_up),
        tau=tau(runs),
        rescued_share=share(total(runs, lambda s: s.rescued), emitted),
        supplied_share=share(total(runs, lambda s: s.sub_drafter_tokens), total(runs, lambda s: s.drafted)),
        forwards_per_token=share(total(runs, lambda s: s.drafter_forwards), emitted),
        accuracy=share(sum(verdicts), len(verdicts)) if verdicts else None,
        lost=sum(bool(base.is_solved) and not run.is_solved for run, base in pairs),
        gained=sum(bool(run.is_solved) and not base.is_solved for run, base in pairs),
    )


def _speed_up(pairs: Sequence[tuple[Measurement, Measurement]]) -> float:
    return share(speed([run for run, _ in pairs]), speed([base for _, base in pairs]))


_INTERVAL = "95% interval"
_FEWEST_PROBLEMS = 20
"""An interval of fewer problems is too narrow: resamples of them are all alike."""
_ROWS: Mapping[str, Callable[[Summary], str]] = {
    "tokens/s": lambda s: f"{s.tokens_per_s:.0f}",
    "median tokens/s": lambda s: f"{s.median_tokens_per_s:.0f}",
    "speed-up": lambda s: f"{s.speed_up.value:.2f}x",
    _INTERVAL: lambda s: f"{s.speed_up.low:.2f}-{s.speed_up.high:.2f}",
    "tau": lambda s: f"{s.tau:.2f}",
    "rescued tokens": lambda s: f"{s.rescued_share:.1%}",
    "drafts by sub-drafter": lambda s: f"{s.supplied_share:.1%}",
    "drafter forwards/token": lambda s: f"{s.forwards_per_token:.2f}",
    "accuracy": lambda s: "-" if s.accuracy is None else f"{s.accuracy:.1%}",
    "problems lost / gained": lambda s: "-" if s.accuracy is None else f"{s.lost} / {s.gained}",
}
_ROWS_WITHOUT_DRAFTS = ("tokens/s", "median tokens/s", "accuracy")


def comparison_table(summaries: Sequence[Summary]) -> Table:
    """Return a table with one column per setting, so that it fits 80 characters; the baseline comes first."""
    title = f"{summaries[0].problems} problems, one request at a time"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    table.add_column("")
    for summary in summaries:
        table.add_column(summary.setting, justify="right", no_wrap=True)
    for row, cell in _ROWS.items():
        if row == _INTERVAL and summaries[0].problems < _FEWEST_PROBLEMS:
            continue
        shown = (cell(s) if s.tau or row in _ROWS_WITHOUT_DRAFTS else "-" for s in summaries)
        table.add_row(row, *shown)
    return table


def notes(summaries: Sequence[Summary], num_tasks: int) -> Iterator[str]:
    """Yield a line for each thing that the table cannot show: what was not measured, what had no effect.

    `num_tasks` is the number of tasks that were to be measured.
    """
    if summaries[0].problems < num_tasks:
        yield f"ended early: {summaries[0].problems} of {num_tasks} problems were measured"
    if summaries[0].problems < _FEWEST_PROBLEMS:
        yield f"no 95% interval: it takes at least {_FEWEST_PROBLEMS} problems"
    for summary in summaries:
        params = SETTINGS[summary.setting]
        if params.mode is Mode.PLAIN:
            continue
        if not summary.tau:
            yield f"{summary.setting}: nothing was drafted, so a difference from plain is chance"
        elif params.sub_drafter and not summary.supplied_share:
            yield f"{summary.setting}: the sub-drafter supplied no draft, so a difference from FLy is chance"
        elif params.mode is Mode.FLY and not summary.rescued_share:
            yield f"{summary.setting}: no token was rescued, so a difference from exact is chance"


BASELINE = "plain"
SETTINGS = {
    BASELINE: SpeculationParams(mode=Mode.PLAIN),
    "exact": SpeculationParams(mode=Mode.EXACT, sub_drafter=False),
    "FLy": SpeculationParams(mode=Mode.FLY, sub_drafter=False),
    "FLy + sub-drafter": SpeculationParams(mode=Mode.FLY, sub_drafter=True),
}
"""The ways of decoding by name, in the order of the table."""
_WARM_UPS = 2

T = TypeVar("T")
SentPrompt = str | tuple[int, ...]
"""A prompt as it is sent: its text, or its tokens."""


class Limits(NamedTuple):
    """Limits of every request: tokens of the response, and seconds; None sets no limit of time."""

    max_new_tokens: int
    timeout_s: float | None = None


def compare(
    client: Client, tasks: Sequence[Task], advance: Advance, limits: Limits
) -> Iterator[Mapping[str, Measurement]]:
    """Yield each task's measurements by setting, after warm-up requests.

    Each setting has its own cache salt, so no setting profits from what the servers cached for another.
    `advance` is called after each of the `num_requests`; the first error of the deployment is raised.

    Raises:
        ConfigError: A prompt of a user does not fit the model; no task is measured.
    """
    salt, prompts = uuid4().hex, sent_prompts(client, tasks, limits.timeout_s)
    for task, prompt in zip(tasks[:_WARM_UPS], prompts, strict=False):
        for setting in SETTINGS:
            measure(client, task, prompt, setting, f"{salt}/warm-up", limits)
            advance()
    for index, (task, prompt) in enumerate(zip(tasks, prompts, strict=True)):
        measured = {}
        for setting in rotated(tuple(SETTINGS), index):
            measured[setting] = measure(client, task, prompt, setting, f"{salt}/{setting}", limits)
            advance()
        yield measured


def rotated(names: Sequence[T], turn: int) -> list[T]:
    """Return the order of one turn: each turn starts one later, so that drift affects all names alike."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def num_requests(num_tasks: int) -> int:
    """Return the number of requests of a comparison, warm-up included."""
    return (num_tasks + min(num_tasks, _WARM_UPS)) * len(SETTINGS)


def measure(
    client: Client, task: Task, prompt: SentPrompt, setting: str, cache_salt: str, limits: Limits
) -> Measurement:
    """Send one task under one setting, with greedy decoding."""
    start = time.perf_counter()
    response = client.generate(
        prompt,
        limits.max_new_tokens,
        speculation=SETTINGS[setting],
        timeout_s=limits.timeout_s,
        cache_salt=cache_salt,
    )
    return Measurement(
        problem=task.id,
        seconds=time.perf_counter() - start,
        is_solved=task.is_solved_by(response.text),
        statistics=response.statistics,
    )


def sent_prompts(client: Client, tasks: Sequence[Task], timeout_s: float | None = None) -> list[SentPrompt]:
    """Return the prompts of tasks as the model wants them: a user's own as its tokens.

    Raises:
        ConfigError: One of a user is rejected, or leaves no room for an answer; names its place.
    """
    if all(task.family for task in tasks):
        return [render(task.prompt) for task in tasks]
    context = client.info(timeout_s).target.context_length
    found = list[SentPrompt]()
    for task in tasks:
        ids = prompt_tokens(client, task.prompt, task.id, timeout_s)
        check_room(task.id, ids, context)
        found.append(ids)
    return found


@dataclass(frozen=True, slots=True)
class Report:
    """The tasks that were measured under every setting: at the end all, after an error those before it."""

    tasks: list[Mapping[str, Measurement]] = field(default_factory=list)

    def run(self, client: Client, tasks: Sequence[Task], console: Console, limits: Limits) -> None:
        """Compare with a progress bar; raise the first error of the deployment."""
        with progress_bar(console, num_requests(len(tasks))) as advance:
            for measured in compare(client, tasks, advance, limits):
                self.tasks.append(measured)

    def runs(self) -> dict[str, list[Measurement]]:
        """Return the measurements of each setting, in the order of the tasks."""
        return {setting: [measured[setting] for measured in self.tasks] for setting in SETTINGS}

    def summaries(self) -> list[Summary]:
        """Return a summary of each setting; there is at least one task."""
        runs = self.runs()
        return [summarize(setting, measured, runs[BASELINE]) for setting, measured in runs.items()]

    def as_json(self) -> str:
        """Return summaries and all measurements as JSON."""
        measurements = {name: [asdict(each) for each in measured] for name, measured in self.runs().items()}
        summaries = [asdict(summary) for summary in self.summaries()]
        return json.dumps({"summaries": summaries, "measurements": measurements}, indent=1) + "\n"
