"""Agents' traffic over four drafters: one memory of responses for all, or one for each (5 minutes)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated
from uuid import uuid4

from pydantic import Field

from benchmarks.harness.client import generate, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Table, make_rows
from benchmarks.harness.statistics import Goal
from benchmarks.harness.system import DEMO_MODELS, Flags, model_flags, running_services, sub_drafter_command
from benchmarks.scenarios.acceleration.measure import Run, Runs
from benchmarks.scenarios.acceleration.report import compare, forwards_per_token
from fly.types import Mode
from flyserve.bench.statistics import share, speed, tau, total
from flyserve.bench.tasks import load_tasks, render
from flyserve.client import Client

ALONE, EACH, TIER = "no memory", "a memory for each drafter", "one memory for all"
WAYS = (ALONE, EACH, TIER)
_DRAFT_LENGTH, _WHOLE_RESPONSE = 15, 512
_NUMBER = re.compile(r"\b\d+\b")


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        agents: Loops, each about a problem of its own.
        steps: Requests of each loop.
        at_once: Concurrent loops.
        drafters: Drafters of each setting.
    """

    agents: Annotated[int, Field(ge=2), Quick(4)] = 40
    steps: Annotated[int, Field(ge=2), Quick(2)] = 4
    at_once: Annotated[int, Field(ge=1)] = 4
    drafters: Annotated[int, Field(ge=1), Quick(2)] = 4


def run(plan: Plan, context: Context) -> Report:
    """Send the trace of all loops under every setting in turn, step by step."""
    return make_report(plan, context, context.parts.measure("traffic", Runs, lambda: measure(plan, context)))


def trace(plan: Plan) -> list[list[str]]:
    """Return the prompts, step by step: those of a loop differ by the number that its tool has returned."""
    problems = [render(task.prompt) for task in load_tasks(plan.agents)]
    return [[edited(problem, step) for problem in problems] for step in range(plan.steps)]


def edited(problem: str, step: int) -> str:
    """Return the problem with another first number; one without a number of its own is asked again."""
    return _NUMBER.sub(lambda found: str(int(found[0]) + step), problem, count=1)


def measure(plan: Plan, context: Context) -> Runs:
    """Return the runs by setting and step."""
    way, salt = speculation(Mode.FLY, _DRAFT_LENGTH), uuid4().hex
    steps, runs = trace(plan), Runs()
    with running(plan.drafters) as clients, ThreadPoolExecutor(plan.at_once) as pool:

        def send(name: str, turn: int) -> list[Run]:
            step = max(0, turn)
            used = f"{salt}/{name}" if turn >= 0 else f"{salt}/warm-up/{name}"

            def ask(number: int) -> Run:
                prompt = steps[step][number]
                response, seconds = generate(clients[name], prompt, _WHOLE_RESPONSE, way, used)
                return Run(number, step, seconds, response.statistics)

            return list(pool.map(ask, range(plan.agents if turn >= 0 else plan.at_once)))

        for name, found in context.interleave("steps of loops", WAYS, plan.steps, send).items():
            runs |= {_key(name, step): each for step, each in enumerate(found)}
    return runs


@contextmanager
def running(num_drafters: int) -> Iterator[Mapping[str, Client]]:
    """Yield a client for each setting: one target, and `num_drafters` and a router for each setting."""
    with running_services() as services, ExitStack() as stack:
        suffix, drafter = sub_drafter_command("suffix"), model_flags(DEMO_MODELS / "drafter", "float32", 4)
        target, shared, *own = services.start_together(
            [
                ("services.target", *model_flags(DEMO_MODELS / "target", "bfloat16", 16, 16_384)),
                *(suffix for _ in range(1 + num_drafters)),
            ]
        )
        memories = {ALONE: (), EACH: own, TIER: [shared] * num_drafters}
        clients = dict[str, Client]()
        for name, used in memories.items():
            flags: list[Flags] = [("--sub-drafter", memory.address) for memory in used]
            drafters = services.start_together(
                [
                    ("services.drafter", *drafter, "--draft-ahead", "off", *each)
                    for each in flags or [()] * num_drafters
                ]
            )
            addresses = [each.address for each in drafters]
            (router,) = services.start_together([services.router_command([target.address], addresses, {})])
            clients[name] = stack.enter_context(Client(router.address))
        yield clients


@dataclass(frozen=True, slots=True)
class Compared:
    """The runs of a setting at some steps, and those of a memory for each drafter."""

    name: str
    steps: str
    runs: Sequence[Run]
    each: Sequence[Run]


def _supplied(runs: Sequence[Run]) -> float:
    def part(name: str) -> float:
        return total(runs, lambda statistics: float(getattr(statistics, name)))

    return share(part("sub_drafter_tokens"), part("drafted"))


FIGURES: tuple[Figure[Compared], ...] = (
    Figure("name", lambda c: c.name, {"setting": "{}"}),
    Figure("steps", lambda c: c.steps, {"requests": "{}"}),
    Figure("forwards", lambda c: forwards_per_token(c.runs), {"drafter's forwards per token": "{:.2f}"}),
    Figure("supplied", lambda c: _supplied(c.runs), {"supplied": "{:.0%}"}),
    Figure("tau", lambda c: tau(c.runs), {"tau": "{:.2f}"}),
    Figure("speed", lambda c: speed(c.runs), {"tokens/s of a request": "{:.0f}"}),
    Figure("by_each", lambda c: compare(c.runs, c.each), {"by one for each": TIMES, "95% interval": AROUND}),
)


def make_report(plan: Plan, context: Context, runs: Runs) -> Report:
    """Return the report: the first requests of all loops, and the later ones."""
    groups = {"first of a loop": range(1), "later": range(1, plan.steps)}
    rows = make_rows(
        FIGURES,
        [
            Compared(name, title, _joined(runs, name, steps), _joined(runs, EACH, steps))
            for title, steps in groups.items()
            for name in WAYS
        ],
    )
    shared, own = (_joined(runs, name, groups["later"]) for name in (TIER, EACH))
    goal = Goal("one memory by one for each, later requests: tokens per second", 1.0, compare(shared, own))
    return Report("memory", context.machine, plan, figures=rows, runs=runs).fill(
        targets=[goal],
        table_of_steps=Table.of("Loops", FIGURES, rows),
        num_drafters=plan.drafters,
        draft_length=_DRAFT_LENGTH,
    )


def _joined(runs: Runs, name: str, steps: Sequence[int]) -> list[Run]:
    return [run for step in steps for run in runs[_key(name, step)]]


def _key(name: str, step: int) -> str:
    return f"{name}, {step}"
