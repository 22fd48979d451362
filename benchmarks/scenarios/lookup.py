"""Speculation without a draft model: look-up drafts for the target itself (about 10 minutes)."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from uuid import uuid4

from pydantic import Field

from benchmarks.harness.client import PLAIN, Prompts, demo_prompts, generate, random_prompts, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.plot import bar_chart
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import Goal
from benchmarks.harness.system import DEMO_MODELS, Flags, model_flags, running_services, simulated_flags
from fly.request import SpeculationParams
from fly.types import Mode
from flyserve.bench.statistics import Interval, bootstrap, share
from flyserve.client import Client

ENGINES = ("ngram", "suffix")
FIRST, SECOND, ENDLESS = "first pass", "second pass", "text that never repeats"
_LENGTH, _WARM_UPS, _WHOLE_RESPONSE = 15, 1, 512
_SIMULATED_S, _VOCABULARY = 0.005, 4096
_DEMO_GOAL, _PASS_GOAL, _ENDLESS_GOAL = 1.3, 2.0, 0.97


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        prompts: Problems of the demo pair; each is sent twice under every setting.
        at_once: Numbers of requests at a time.
        endless_prompts: Prompts that the simulated target continues without a repetition.
        endless_tokens: New tokens of each.
    """

    prompts: Annotated[int, Field(ge=1), Quick(4)] = 60
    at_once: Annotated[tuple[int, ...], Quick((1,))] = (1, 4)
    endless_prompts: Annotated[int, Field(ge=1), Quick(2)] = 24
    endless_tokens: Annotated[int, Quick(48)] = 256


@dataclass(frozen=True, slots=True)
class Setting:
    """A way of decoding: an engine that looks tokens up, and the speculation of the requests."""

    name: str
    engine: str
    way: SpeculationParams


BASELINE = Setting("plain", ENGINES[0], PLAIN)
SETTINGS = (
    BASELINE,
    *(
        Setting(f"{e}, {mode}", e, speculation(mode, _LENGTH))
        for e in ENGINES
        for mode in (Mode.EXACT, Mode.FLY)
    ),
    Setting("suffix, fly, goodput", "suffix", speculation(Mode.FLY, _LENGTH, is_goodput=True)),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Responses that were requested together.

    Attributes:
        seconds: Time from the first request to the end of the last response.
        drafted, accepted: Draft tokens, and those that were accepted.
    """

    seconds: float
    tokens: int
    rounds: int
    drafted: int
    accepted: int


Batches = dict[str, list[Batch]]
"""Batches by setting; all settings have the same prompts in one order."""


@contextmanager
def running(target: Flags) -> Iterator[Mapping[str, Client]]:
    """Yield a client for each engine: one target, and a look-up drafter and a router for each engine."""
    with running_services() as services, ExitStack() as stack:
        lookup = [("services.lookup", "--role", "drafter", "--engine", engine) for engine in ENGINES]
        verifier, *drafters = services.start_together([("services.target", *target), *lookup])
        routers = services.start_together(
            [services.router_command([verifier.address], [drafter.address], {}) for drafter in drafters]
        )
        clients = [stack.enter_context(Client(router.address)) for router in routers]
        yield dict(zip(ENGINES, clients, strict=True))


def send_together(
    client: Client, way: SpeculationParams, prompts: Prompts, max_new_tokens: int, salt: str
) -> Batch:
    """Send the prompts at the same time."""
    started = time.perf_counter()
    with ThreadPoolExecutor(len(prompts)) as pool:
        responses = pool.map(lambda prompt: generate(client, prompt, max_new_tokens, way, salt)[0], prompts)
        found = [response.statistics for response in responses]
    return Batch(
        seconds=time.perf_counter() - started,
        tokens=sum(each.emitted for each in found),
        rounds=sum(each.rounds for each in found),
        drafted=sum(each.drafted for each in found),
        accepted=sum(each.accepted for each in found),
    )


def measure_passes(plan: Plan, context: Context, at_once: int) -> dict[str, Batches]:
    """Send all problems twice: the second time `suffix` has the responses of the first in its cache."""
    batches = cut(demo_prompts(plan.prompts), at_once)
    found = _measure(
        model_flags(DEMO_MODELS / "target", "bfloat16"),
        batches * 2,
        _WHOLE_RESPONSE,
        context,
        f"{at_once} at once",
    )
    half = len(batches)
    return {
        FIRST: {name: measured[:half] for name, measured in found.items()},
        SECOND: {name: measured[half:] for name, measured in found.items()},
    }


def measure_endless(plan: Plan, context: Context, at_once: int) -> dict[str, Batches]:
    """Let a simulated target continue random tokens: every token is random, so nothing repeats."""
    costs = {"base_s": _SIMULATED_S, "per_token_s": 0.0, "vocab_size": _VOCABULARY}
    target = simulated_flags({**costs, "response_tokens": [plan.endless_tokens] * 2})
    batches = cut(random_prompts(range(16, _VOCABULARY), plan.endless_prompts), at_once)
    return {ENDLESS: _measure(target, batches, plan.endless_tokens, context, ENDLESS)}


def cut(prompts: Prompts, size: int) -> list[Prompts]:
    """Return the prompts in batches of this size; the last one may be smaller."""
    return [prompts[start : start + size] for start in range(0, len(prompts), size)]


def _measure(
    target: Flags, batches: Sequence[Prompts], max_new_tokens: int, context: Context, label: str
) -> Batches:
    """Send every batch under every setting in turn; each setting has a cache salt of its own."""
    salt, ways = uuid4().hex, {setting.name: setting for setting in SETTINGS}
    with running(target) as clients:

        def send(name: str, turn: int) -> Batch:
            setting, own = ways[name], f"{salt}/{name}" if turn >= 0 else f"{salt}/warm-up"
            return send_together(clients[setting.engine], setting.way, batches[turn], max_new_tokens, own)

        return context.interleave(label, tuple(ways), len(batches), send, _WARM_UPS)


PARTS: Mapping[str, Callable[[Plan, Context, int], dict[str, Batches]]] = {
    "demo": measure_passes,
    "endless": measure_endless,
}


def run(plan: Plan, context: Context) -> Report:
    """Measure every part, and report them together."""
    found = {
        f"{title}, {at_once} at once": batches
        for part in context.chosen(tuple(PARTS))
        for at_once in plan.at_once
        for title, batches in context.parts.measure(
            f"{part}-{at_once}", dict[str, Batches], partial(PARTS[part], plan, context, at_once)
        ).items()
    }
    return make_report(plan, context, found)


def speed_up(batches: Sequence[Batch], baseline: Sequence[Batch]) -> Interval:
    """Return tokens per second divided by the baseline's, with its interval over resamples of the prompts."""
    return bootstrap(
        list(zip(batches, baseline, strict=True)),
        lambda pairs: share(_speed([own for own, _ in pairs]), _speed([other for _, other in pairs])),
    )


def _speed(batches: Sequence[Batch]) -> float:
    return share(sum(each.tokens for each in batches), sum(each.seconds for each in batches))


Compared = tuple[str, Sequence[Batch], Sequence[Batch]]
FIGURES: tuple[Figure[Compared], ...] = (
    Figure("name", lambda c: c[0], {"setting": "{}"}),
    Figure("tokens_per_s", lambda c: _speed(c[1]), {"tokens/s": "{:.0f}"}),
    Figure("speed_up", lambda c: speed_up(c[1], c[2]), {"by plain": TIMES, "95% interval": AROUND}),
    Figure("per_round", lambda c: _ratio(c[1], "tokens", "rounds"), {"tokens per round": "{:.2f}"}),
    Figure("drafted", lambda c: _ratio(c[1], "drafted", "tokens"), {"drafted per token": "{:.2f}"}),
    Figure("accepted", lambda c: _ratio(c[1], "accepted", "drafted"), {"accepted": "{:.0%}"}),
)


def _ratio(batches: Sequence[Batch], part: str, whole: str) -> float:
    return share(sum(getattr(each, part) for each in batches), sum(getattr(each, whole) for each in batches))


def make_report(plan: Plan, context: Context, found: Mapping[str, Batches]) -> Report:
    """Return the report of the parts that were measured."""
    figures = {
        title: make_rows(FIGURES, [(name, own, batches[BASELINE.name]) for name, own in batches.items()])
        for title, batches in found.items()
    }
    parts = [(Table.of(title, FIGURES, rows), _chart(title, rows)) for title, rows in figures.items()]
    return Report("lookup", context.machine, plan, figures=figures, batches=found).fill(
        machine=context.machine,
        length=_LENGTH,
        simulated_ms=1e3 * _SIMULATED_S,
        vocabulary=_VOCABULARY,
        parts=parts,
        targets=list(make_goals(figures)),
    )


def make_goals(figures: Mapping[str, Sequence[Row]]) -> Iterator[Goal]:
    """Yield the goals, all of engine `suffix`."""
    limits = {FIRST: _DEMO_GOAL, SECOND: _PASS_GOAL, ENDLESS: _ENDLESS_GOAL}
    for title, rows in figures.items():
        part = title.partition(",")[0]
        for row in rows:
            if row.name in ("suffix, exact", "suffix, fly"):
                yield Goal(f"{row.name}, by plain: {title}", limits[part], row.speed_up)


def _chart(title: str, rows: Sequence[Row]) -> str:
    return bar_chart(title, "tokens/s by plain", {row.name: row.speed_up.value for row in rows})
