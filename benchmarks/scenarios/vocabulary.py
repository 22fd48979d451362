"""Drafters with another vocabulary: acceptance, speed and equality with plain decoding (8 minutes)."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated
from uuid import uuid4

from pydantic import Field

from benchmarks.harness.client import PLAIN, demo_prompts, generate, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Row, Table, make_rows
from benchmarks.harness.statistics import Goal
from benchmarks.harness.system import DEMO_MODELS, Flags, model_flags, running_services
from fly.response import Statistics
from fly.sequence import SequenceMirror, TokenSequence
from fly.types import Mode
from flyserve.bench.statistics import Interval, bootstrap, mean_tau, share
from flyserve.bench.statistics import speed as tokens_per_s
from flyserve.client import Client
from services.drafter.vocabulary.mapping import VocabularyMap
from services.drafter.vocabulary.streams import TokenStreams

BASELINE, OWN = "plain", "own vocabulary"
WAYS = ("text",)
FOREIGN = {f"another, {way}": way for way in WAYS}
NAMES = (BASELINE, OWN, *FOREIGN)
PARTS = ("speed", "exact", "cost")
_LENGTH, _WHOLE_RESPONSE, _MAX_SEQUENCES = 15, 512, 8
_TAU_GOAL, _SPEED_GOAL, _MAPPING_GOAL_MS = 0.8, 1.5, 0.1
_EXACT = speculation(Mode.EXACT, _LENGTH)
_TARGET, _FOREIGN = DEMO_MODELS / "target", DEMO_MODELS / "foreign_drafter"


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        prompts: Held-out problems that are timed, one after the other under every setting.
        problems: Held-out problems whose responses are compared with those of plain decoding.
        at_once: Numbers of these that are sent at a time.
        context_tokens: Length of the sequence whose rounds are mapped.
        rounds: Mapped rounds.
    """

    prompts: Annotated[int, Field(ge=1), Quick(4)] = 60
    problems: Annotated[int, Field(ge=1), Quick(12)] = 300
    at_once: Annotated[int, Field(ge=1, le=_MAX_SEQUENCES)] = 8
    context_tokens: Annotated[int, Field(ge=1)] = 8192
    rounds: Annotated[int, Field(ge=1), Quick(50)] = 500


@dataclass(frozen=True, slots=True)
class Timed:
    """A response of one request at a time."""

    seconds: float
    statistics: Statistics


Speeds = dict[str, list[Timed]]
Tokens = dict[str, list[tuple[int, ...]]]
"""Responses by setting."""
Costs = dict[str, list[float]]
"""Seconds of mapped rounds by way."""


@contextmanager
def running(names: Sequence[str], dtype: str) -> Iterator[Mapping[str, Client]]:
    """Yield a client for each setting: one target, and a drafter and a router for each setting but plain."""
    with running_services() as services, ExitStack() as stack:
        target, *drafters = services.start_together(
            [("services.target", *model_flags(_TARGET, dtype)), *map(_drafter, names[1:])]
        )
        routers = services.start_together(
            [services.router_command([target.address], [drafter.address], {}) for drafter in drafters]
        )
        clients = [stack.enter_context(Client(router.address)) for router in routers]
        yield dict(zip(names, [clients[0], *clients], strict=True))


def _drafter(name: str) -> Flags:
    if name == OWN:
        return ("services.drafter", *model_flags(DEMO_MODELS / "drafter", "float32"))
    mapped = ("--vocabulary", FOREIGN[name], "--target-tokenizer", str(_TARGET))
    return ("services.drafter", *model_flags(_FOREIGN, "float32"), *mapped)


def measure_speed(plan: Plan, context: Context) -> Speeds:
    """Time every prompt under every setting in turn."""
    prompts, salt = demo_prompts(plan.prompts), uuid4().hex
    with running(NAMES, "bfloat16") as clients:

        def send(name: str, turn: int) -> Timed:
            way = PLAIN if name == BASELINE else _EXACT
            salted = f"{salt}/{name}/{turn}"
            response, seconds = generate(clients[name], prompts[turn], _WHOLE_RESPONSE, way, salted)
            return Timed(seconds, response.statistics)

        return context.interleave("timed problems", NAMES, len(prompts), send)


def measure_exact(plan: Plan, context: Context) -> Tokens:
    """Return the responses of all problems, in fp32, of plain decoding and of both ways."""
    prompts, names = demo_prompts(plan.problems), (BASELINE, *list(FOREIGN)[:2])
    with running(names, "float32") as clients, ThreadPoolExecutor(plan.at_once) as pool:

        def respond(name: str, turn: int) -> list[tuple[int, ...]]:
            way = PLAIN if name == BASELINE else _EXACT
            sent = pool.map(lambda each: generate(clients[name], each, _WHOLE_RESPONSE, way), prompts)
            return [tuple(token.id for token in response.tokens) for response, _ in sent]

        found = context.interleave("compared problems", names, 1, respond, warm_ups=0)
    return {name: responses for name, (responses,) in found.items()}


def measure_cost(plan: Plan) -> Costs:
    """Return the seconds of mapping alone in every round of a long sequence, by way."""
    ids = [token for prompt in demo_prompts(300) for token in prompt]
    return mapping_costs(VocabularyMap.load(_TARGET, _FOREIGN), ids, plan.context_tokens, plan.rounds)


def mapping_costs(mapping: VocabularyMap, ids: Sequence[int], context_tokens: int, num_rounds: int) -> Costs:
    """Return the seconds of every mapped round behind `context_tokens` of the target, by way.

    The sequence consists of `ids`, repeated as often as it needs.
    """
    length = context_tokens + num_rounds * _LENGTH
    repeated = [*ids] * (1 + length // len(ids))
    return {way: list(_mapped_rounds(mapping, repeated, context_tokens, num_rounds)) for way in WAYS}


def _mapped_rounds(
    mapping: VocabularyMap, ids: Sequence[int], context_tokens: int, num_rounds: int
) -> Iterator[float]:
    """Yield the seconds of every round: an update of the target's tokens, and a draft in the drafter's."""
    streams, mirror = TokenStreams(mapping), SequenceMirror()
    sequence = TokenSequence(ids[:context_tokens])
    streams.apply(mirror.update(sequence, (), len(sequence)))
    for _ in range(num_rounds):
        length = len(sequence)
        draft = mapping.respell(ids[length : length + _LENGTH], 0)
        started = time.perf_counter()
        drafted = streams.take(draft, _LENGTH)
        taken = time.perf_counter() - started
        mirror.append(drafted)
        sequence.extend(ids[length : length + _LENGTH // 2])
        update = mirror.update(sequence, (), len(sequence))
        started = time.perf_counter()
        streams.apply(update)
        yield taken + time.perf_counter() - started


Compared = tuple[str, Sequence[Timed], Speeds]
BY_PLAIN: tuple[Figure[Compared], ...] = (
    Figure("name", lambda c: c[0], {"drafter": "{}"}),
    Figure("tokens_per_s", lambda c: tokens_per_s(c[1]), {"tokens/s": "{:.0f}"}),
    Figure(
        "speed_up",
        lambda c: _ratio(c[1], c[2][BASELINE], tokens_per_s),
        {"by plain": TIMES, "95% interval": AROUND},
    ),
    Figure("tau", lambda c: _tau(c[1]), {"tau": "{:.2f}"}),
)
"""Figures of the timed responses of one setting beside those of plain decoding."""
SPEED: tuple[Figure[Compared], ...] = (
    *BY_PLAIN,
    Figure(
        "tau_by_own", lambda c: _ratio(c[1], c[2][OWN], _tau), {"by own": TIMES, "95% interval of it": AROUND}
    ),
)
EXACT: tuple[Figure[tuple[str, int, int]], ...] = (
    Figure("name", lambda c: c[0], {"drafter": "{}"}),
    Figure("equal", lambda c: c[1], {"equal to plain": "{}"}),
    Figure("problems", lambda c: c[2], {"of": "{}"}),
)
COST: tuple[Figure[tuple[str, Sequence[float]]], ...] = (
    Figure("name", lambda c: c[0], {"way": "{}"}),
    Figure("median_ms", lambda c: 1e3 * median(c[1]), {"median, ms": "{:.3f}"}),
    Figure("longest_ms", lambda c: 1e3 * max(c[1]), {"longest, ms": "{:.3f}"}),
)


def _tau(runs: Sequence[Timed]) -> float:
    return mean_tau([run.statistics for run in runs])


def _ratio(
    runs: Sequence[Timed], base: Sequence[Timed], figure: Callable[[Sequence[Timed]], float]
) -> Interval:
    """Return a figure by that of other responses to the same prompts, over resamples of the prompts."""
    return bootstrap(
        list(zip(runs, base, strict=True)),
        lambda pairs: share(figure([own for own, _ in pairs]), figure([other for _, other in pairs])),
    )


def run(plan: Plan, context: Context) -> Report:
    """Measure every part, and report them together."""
    chosen, measured = context.chosen(PARTS), context.parts.measure
    speeds = measured("speed", Speeds, partial(measure_speed, plan, context)) if "speed" in chosen else {}
    tokens = measured("exact", Tokens, partial(measure_exact, plan, context)) if "exact" in chosen else {}
    costs = measured("cost", Costs, partial(measure_cost, plan)) if "cost" in chosen else {}
    return make_report(plan, context, speeds, tokens, costs)


def make_report(plan: Plan, context: Context, speeds: Speeds, tokens: Tokens, costs: Costs) -> Report:
    """Return the report of the parts that were measured; a response unlike plain decoding's is a fault."""
    speed_rows = make_rows(SPEED, [(name, own, speeds) for name, own in speeds.items()])
    exact_rows, cost_rows = make_rows(EXACT, equal_to_plain(tokens)), make_rows(COST, costs.items())
    tables = (
        Table.of("Acceptance and speed", SPEED, speed_rows),
        Table.of("Equality with plain decoding", EXACT, exact_rows),
        Table.of("Cost of mapping, per round", COST, cost_rows),
    )
    report = Report(
        "vocabulary", context.machine, plan, speeds=speed_rows, exact=exact_rows, costs=cost_rows
    ).fill(
        machine=context.machine,
        length=_LENGTH,
        tables=[table for table in tables if table.rows],
        targets=[*_speed_goals(speed_rows), *cost_goals(costs)],
    )
    report.faults += faults(exact_rows)
    return report


def faults(exact_rows: Sequence[Row]) -> list[str]:
    """Return a line for each setting with responses unlike those of plain decoding."""
    return [
        f"{row.name}: {row.problems - row.equal} of {row.problems} responses differ from plain decoding"
        for row in exact_rows
        if row.equal < row.problems
    ]


def equal_to_plain(tokens: Tokens) -> Iterator[tuple[str, int, int]]:
    """Yield each setting but plain with its number of responses equal to plain decoding, and of all."""
    for name, found in tokens.items():
        if name != BASELINE:
            yield name, sum(map(tuple.__eq__, found, tokens[BASELINE])), len(found)


def _speed_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    for row in rows:
        if row.name in FOREIGN:
            yield Goal(f"tau of {row.name}, by own vocabulary", _TAU_GOAL, row.tau_by_own)
            yield Goal(f"speed of {row.name}, by plain", _SPEED_GOAL, row.speed_up)


def cost_goals(costs: Costs) -> Iterator[Goal]:
    """Yield the goal of a mapped round, by way."""
    for way, seconds in costs.items():
        by_limit = bootstrap([1e3 * each / _MAPPING_GOAL_MS for each in seconds], median)
        yield Goal(f"a mapped round of {way}, by {_MAPPING_GOAL_MS} ms", 1.0, by_limit, is_least=False)
