"""A real pair of two vocabularies, Gemma 3 270M and SmolLM2-135M: equality, tau and speed (30 minutes)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated
from uuid import uuid4

from pydantic import Field

from benchmarks.harness.client import PLAIN, Prompts, generate, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.report import Figure, Report, Table, make_rows
from benchmarks.harness.system import model_flags, running_services
from benchmarks.scenarios.vocabulary import (
    BASELINE,
    BY_PLAIN,
    COST,
    WAYS,
    Compared,
    Costs,
    Speeds,
    Timed,
    cost_goals,
    faults,
    mapping_costs,
)
from demo.real.fetch import GEMMA3, SMOLLM2, model_folder
from demo.real.texts import BEGINNINGS
from fly.errors import ConfigError
from fly.request import SpeculationParams
from fly.response import Statistics
from fly.types import Mode
from flyserve.bench.statistics import mean_tau
from flyserve.client import Client
from router.text.tokenizer import Tokenizer
from services.drafter.vocabulary.mapping import VocabularyMap
from services.engine.config import Dtype

PARTS = ("speed", "acceptance", "cost")
MODES = {"exact": Mode.EXACT, "FLy": Mode.FLY}
_TARGET, _DRAFTER = model_folder(GEMMA3), model_folder(SMOLLM2)
SETTINGS = {f"{name}, {way}": (mode, way) for name, mode in MODES.items() for way in WAYS}


_WAITS = 1e6
"""Patience of a router that waits for every draft, however late."""


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        target: Folder of the target.
        drafter: Folder of the drafter.
        target_dtype: Type of the target where speed is measured; acceptance is measured in float32.
        drafter_dtype: The same of the drafter.
        prompts: Beginnings of texts that are continued, one after the other under every setting.
        max_new_tokens: Longest continuation.
        draft_length: Tokens of each draft.
        context_tokens: Length of the sequence whose rounds are mapped.
        rounds: Mapped rounds.
    """

    target: Path = _TARGET
    drafter: Path = _DRAFTER
    target_dtype: Dtype = Dtype.BFLOAT16
    drafter_dtype: Dtype = Dtype.BFLOAT16
    prompts: Annotated[int, Field(ge=1, le=len(BEGINNINGS)), Quick(2)] = len(BEGINNINGS)
    max_new_tokens: Annotated[int, Field(ge=1), Quick(16)] = 48
    draft_length: Annotated[int, Field(ge=1, le=64)] = 7
    context_tokens: Annotated[int, Field(ge=1)] = 8192
    rounds: Annotated[int, Field(ge=1), Quick(50)] = 500


@dataclass(frozen=True, slots=True)
class Overlap:
    """The vocabularies of the pair.

    Attributes:
        share: Share of the drafter's ordinary tokens that the target has too.
    """

    target_tokens: int
    drafter_tokens: int
    share: float


@dataclass(frozen=True, slots=True)
class Waited:
    """A response whose rounds waited for their drafts."""

    tokens: tuple[int, ...]
    statistics: Statistics


Acceptance = dict[str, list[Waited]]
"""Responses by setting."""


@contextmanager
def running(
    plan: Plan, target_dtype: str, drafter_dtype: str, **config: float
) -> Iterator[Mapping[str, Client]]:
    """Yield a client for each way: one target, and a drafter and a router for each way.

    `config` are further keys of the routers.
    """

    def drafter(way: str) -> tuple[str, ...]:
        mapped = ("--vocabulary", way, "--target-tokenizer", str(plan.target))
        return ("services.drafter", *model_flags(plan.drafter, drafter_dtype), *mapped)

    with running_services() as services, ExitStack() as stack:
        target = services.start("services.target", *model_flags(plan.target, target_dtype))
        drafters = [services.start(*drafter(way)) for way in WAYS]
        keys = {"model": str(plan.target), **config}
        routers = services.start_together(
            [services.router_command([target.address], [each.address], keys) for each in drafters]
        )
        clients = [stack.enter_context(Client(router.address)) for router in routers]
        yield dict(zip(WAYS, clients, strict=True))


def way_of(name: str, plan: Plan) -> tuple[str, SpeculationParams]:
    """Return the way to map, and the way to decode, of a setting; plain decoding uses any router."""
    if name == BASELINE:
        return WAYS[0], PLAIN
    mode, way = SETTINGS[name]
    return way, speculation(mode, plan.draft_length)


def measure_speed(plan: Plan, prompts: Prompts, context: Context) -> Speeds:
    """Time every prompt under every setting in turn."""
    salt = uuid4().hex
    with running(plan, plan.target_dtype, plan.drafter_dtype) as clients:

        def send(name: str, turn: int) -> Timed:
            way, decoding = way_of(name, plan)
            salted = f"{salt}/{name}/{turn}"
            response, seconds = generate(clients[way], prompts[turn], plan.max_new_tokens, decoding, salted)
            return Timed(seconds, response.statistics)

        return context.interleave("timed prompts", (BASELINE, *SETTINGS), len(prompts), send)


def measure_acceptance(plan: Plan, prompts: Prompts, context: Context) -> Acceptance:
    """Return all responses under every setting, in float32, where every round waits for its draft."""
    with running(plan, Dtype.FLOAT32, Dtype.FLOAT32, draft_patience=_WAITS) as clients:

        def respond(name: str, turn: int) -> Waited:
            way, decoding = way_of(name, plan)
            response, _ = generate(clients[way], prompts[turn], plan.max_new_tokens, decoding)
            return Waited(tuple(token.id for token in response.tokens), response.statistics)

        names = (BASELINE, *SETTINGS)
        return context.interleave("compared prompts", names, len(prompts), respond, warm_ups=0)


def measure_cost(plan: Plan, mapping: VocabularyMap, prompts: Prompts) -> Costs:
    """Return the seconds of mapping alone in every round of a long sequence, by way."""
    ids = [token for prompt in prompts for token in prompt if token not in mapping.target.lead]
    return mapping_costs(mapping, ids, plan.context_tokens, plan.rounds)


def run(plan: Plan, context: Context) -> Report:
    """Measure every part, and report them together.

    Raises:
        ConfigError: A model is not there.
    """
    for folder in (plan.target, plan.drafter):
        if not folder.is_dir():
            raise ConfigError(f"{folder} does not exist: `make real` fetches the real models")
    tokenizer = Tokenizer.load(plan.target)
    prompts = tuple(tokenizer.encode(text) for text in BEGINNINGS[: plan.prompts])
    mapping = VocabularyMap.load(plan.target, plan.drafter)
    chosen, measured = context.chosen(PARTS), context.parts.measure
    speeds, acceptance, costs = Speeds(), Acceptance(), Costs()
    if "speed" in chosen:
        speeds = measured("speed", Speeds, partial(measure_speed, plan, prompts, context))
    if "acceptance" in chosen:
        measure = partial(measure_acceptance, plan, prompts, context)
        acceptance = measured("acceptance", Acceptance, measure)
    if "cost" in chosen:
        costs = measured("cost", Costs, partial(measure_cost, plan, mapping, prompts))
    overlap = Overlap(len(mapping.target), len(mapping.drafter), mapping.overlap)
    return make_report(plan, context, overlap, speeds, acceptance, costs)


SPEED: tuple[Figure[Compared], ...] = (
    *BY_PLAIN,
    Figure("drafted", lambda c: _drafted(c[1]), {"rounds with a draft": "{:.0%}"}),
)


ACCEPTANCE: tuple[Figure[tuple[str, Sequence[Waited], Acceptance]], ...] = (
    Figure("name", lambda c: c[0], {"drafter": "{}"}),
    Figure("tau", lambda c: mean_tau([each.statistics for each in c[1]]), {"tau": "{:.2f}"}),
    Figure("equal", lambda c: _num_equal(c[1], c[2][BASELINE]), {"equal to plain": "{}"}),
    Figure("problems", lambda c: len(c[1]), {"of": "{}"}),
)


def _drafted(runs: Sequence[Timed]) -> float:
    """Return the share of the rounds that had a draft."""
    drafted = sum(run.statistics.draft_rounds for run in runs)
    return drafted / max(1, sum(run.statistics.rounds for run in runs))


def _num_equal(found: Sequence[Waited], plain: Sequence[Waited]) -> int:
    return sum(own.tokens == other.tokens for own, other in zip(found, plain, strict=True))


def make_report(
    plan: Plan, context: Context, overlap: Overlap, speeds: Speeds, acceptance: Acceptance, costs: Costs
) -> Report:
    """Return the report of the parts that were measured; an exact response unlike plain's is a fault."""
    speed_rows = make_rows(SPEED, [(name, own, speeds) for name, own in speeds.items()])
    drafted = [(name, own, acceptance) for name, own in acceptance.items() if name != BASELINE]
    accepted_rows, cost_rows = make_rows(ACCEPTANCE, drafted), make_rows(COST, costs.items())
    tables = (
        Table.of("Acceptance, where every round waits for its draft", ACCEPTANCE, accepted_rows),
        Table.of("Speed", SPEED, speed_rows),
        Table.of("Cost of mapping, per round", COST, cost_rows),
    )
    report = Report(
        "real_pair",
        context.machine,
        plan,
        overlap=overlap,
        speeds=speed_rows,
        acceptance=accepted_rows,
        costs=cost_rows,
    ).fill(
        machine=context.machine,
        tables=[table for table in tables if table.rows],
        targets=list(cost_goals(costs)),
        names=(plan.target.name, plan.drafter.name),
    )
    report.faults += faults([row for row in accepted_rows if SETTINGS[row.name][0] is Mode.EXACT])
    return report
