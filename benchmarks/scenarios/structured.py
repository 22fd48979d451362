"""Structured output: the cost of masks at a vocabulary of 128,000, and what free drafts save (6 minutes)."""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any

from pydantic import Field

from benchmarks.harness.client import demo_prompts, speculation
from benchmarks.harness.command import BasePlan, Context, Quick
from benchmarks.harness.report import AROUND, TIMES, Figure, Report, Table, make_rows
from benchmarks.harness.statistics import Goal, median_ratio
from benchmarks.harness.system import DEMO_MODELS, model_flags, running_services
from benchmarks.scenarios.simulate.hardware import H200, LLAMA_70B, Replica
from fly.grammar import Grammar, GrammarKind
from fly.request import SamplingParams
from fly.types import Mode
from flyserve.bench.statistics import share
from flyserve.client import Client
from router.requests.grammars import library_form
from services.common.grammars.follower import GrammarFollower
from services.common.grammars.host import GrammarHost, HostedGrammar, TokenizerSource
from services.common.grammars.library import compile_grammar, load_tokenizer
from services.common.grammars.limits import REPLICA_LIMITS
from services.engine.base import ForwardInput, KvSlot
from services.engine.head.head import Head

VOCABULARY = 128_000
DRAFTS = 15
MASKED, UNMASKED = "with a grammar", "without"
FREE, ASKED = "free drafts", "without free drafts"
_RESPONSE_TOKENS = 160
_MODEL = Replica(LLAMA_70B, H200, num_gpus=2, context_tokens=2048)
_MASK_GOAL, _FREE_GOAL = 1.05, 1.3
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "problem": {"type": "string", "maxLength": 40},
        "operation": {"enum": ["addition", "subtraction", "multiplication", "division"]},
        "needs_more_information": {"type": "boolean"},
        "intermediate_results": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        "final_answer": {"type": "integer"},
    },
    "additionalProperties": False,
}
SCHEMA["required"] = list(SCHEMA["properties"])
GRAMMAR = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))


@dataclass(frozen=True, slots=True)
class Plan(BasePlan):
    """The amount of measuring.

    Attributes:
        streams: Numbers of sequences in one verification.
        repeat: Responses of each, with the masks and without.
        problems: Problems of the demo pair that are answered by the schema.
    """

    streams: Annotated[tuple[int, ...], Quick((8,))] = (1, 8)
    repeat: Annotated[int, Field(ge=1), Quick(2)] = 12
    problems: Annotated[int, Field(ge=1), Quick(4)] = 60


@dataclass(frozen=True, slots=True)
class Answer:
    """One response that the schema binds."""

    seconds: float
    tokens: int
    rounds: int
    forced: int
    forced_accepted: int


Seconds = dict[str, list[float]]
Answers = dict[str, list[Answer]]


def large_tokenizer() -> str:
    """Return the demo's `tokenizer.json`, filled up to 128,000 tokens by pairs of its own."""
    tokenizer = json.loads((DEMO_MODELS / "target" / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    special = {each["content"] for each in tokenizer["added_tokens"]}
    pieces = [piece for piece in vocabulary if piece not in special]
    pairs = (first + second for first in pieces for second in pieces)
    fresh = (pair for pair in pairs if pair not in vocabulary)
    while len(vocabulary) < VOCABULARY:
        vocabulary[next(fresh)] = len(vocabulary)
    return json.dumps(tokenizer)


def draw_response(follower: GrammarFollower, rng: random.Random) -> list[int]:
    """Return random tokens that the grammar allows, one after the other, from the start of a response."""
    tokens: list[int] = []
    while len(tokens) < _RESPONSE_TOKENS:
        follower.move(tokens)
        allowed = [
            32 * index + bit
            for index, word in enumerate(follower.mask(()).tolist())
            if word
            for bit in range(32)
            if word >> bit & 1
        ]
        if not allowed:
            break
        tokens.append(rng.choice(allowed))
    return tokens


def measure_masks(plan: Plan, context: Context, num_streams: int) -> Seconds:
    """Return the seconds of every verification, with masks and without, on random logits.

    The forward is a pause of the simulated model's time: masks are computed meanwhile.
    """
    import torch

    text, form, rng = large_tokenizer(), library_form(GRAMMAR), random.Random(0)
    tokenizer = load_tokenizer(text, VOCABULARY)
    compiled = compile_grammar(tokenizer, form)
    with closing(GrammarHost()) as host:
        grammar = HostedGrammar(host, TokenizerSource("", lambda: text, VOCABULARY), REPLICA_LIMITS)
        grammar.compile(form)
        responses = [
            draw_response(GrammarFollower(compiled.deep_copy(), VOCABULARY, tokenizer.eos_tokens), rng)
            for _ in range(num_streams)
        ]
        steps = min(len(response) for response in responses) // (DRAFTS + 1)
        rows = torch.randn(num_streams * (DRAFTS + 1), VOCABULARY, generator=torch.Generator().manual_seed(0))
        forward_s = _MODEL.base_s + num_streams * _MODEL.sequence_s
        heads = {name: Head(VOCABULARY, mask_patience_s=60) for name in (MASKED, UNMASKED)}

        def verify(name: str, turn: int) -> list[float]:
            """Return the seconds of every verification of one response of each sequence."""
            seconds, slots = [], [KvSlot(number) for number in range(num_streams)]
            for step in range(steps):
                batch = [
                    _input(slot, response, step, grammar if name == MASKED else None)
                    for slot, response in zip(slots, responses, strict=True)
                ]
                started = time.perf_counter()
                heads[name].start(batch)
                time.sleep(forward_s)
                heads[name](rows, batch)
                seconds.append(time.perf_counter() - started)
            for slot in slots:
                heads[name].forget(slot)
            return seconds

        found = context.interleave(f"{num_streams} streams", (MASKED, UNMASKED), plan.repeat, verify)
    # NOTE: in the first verification the followers begin, which a prefill hides in a deployment.
    return {name: [median(turn[1:]) for turn in turns] for name, turns in found.items()}


def _input(slot: KvSlot, response: Sequence[int], step: int, grammar: HostedGrammar | None) -> ForwardInput:
    """Return the input of one verification: a token of the response, and the next ones as drafts."""
    first = step * (DRAFTS + 1)
    prompt, drafts = [0], response[first : first + DRAFTS]
    history = [*prompt, *response[:first], *drafts]
    start = len(history) - len(drafts) - 1
    return ForwardInput(
        slot=slot,
        start=start,
        tokens=history[start:],
        num_outputs=len(drafts) + 1,
        sampling=SamplingParams(),
        prompt_length=len(prompt),
        history=history,
        drafts=(*drafts, -1),
        grammar=grammar,
    )


def measure_free(plan: Plan, context: Context) -> Answers:
    """Answer problems by the schema, through a router with free drafts and one without."""
    prompts, way = demo_prompts(plan.problems), speculation(Mode.FLY, DRAFTS)
    with _running() as clients:

        def send(name: str, turn: int) -> Answer:
            started = time.perf_counter()
            response = clients[name].generate(prompts[turn], 256, speculation=way, grammar=GRAMMAR)
            seconds, found = time.perf_counter() - started, response.statistics
            return Answer(seconds, found.emitted, found.rounds, found.forced, found.forced_accepted)

        return context.interleave("answers by schema", (FREE, ASKED), len(prompts), send)


@contextmanager
def _running() -> Iterator[Mapping[str, Client]]:
    """Yield a client of each router, both in front of the demo pair."""
    with running_services() as services, ExitStack() as stack:
        target, drafter = services.start_together(
            [
                ("services.target", *model_flags(DEMO_MODELS / "target", "bfloat16")),
                ("services.drafter", *model_flags(DEMO_MODELS / "drafter", "bfloat16")),
            ]
        )
        limits: Mapping[str, dict[str, Any]] = {FREE: {}, ASKED: {"limits": {"forced_characters": 0}}}
        routers = services.start_together(
            [services.router_command([target.address], [drafter.address], each) for each in limits.values()]
        )
        clients = [stack.enter_context(Client(router.address)) for router in routers]
        yield dict(zip(limits, clients, strict=True))


PARTS = ("masks", "free")
Compared = tuple[str, Sequence[float], Sequence[float]]
COST: tuple[Figure[Compared], ...] = (
    Figure("name", lambda c: c[0], {"sequences": "{}"}),
    Figure("with_ms", lambda c: 1e3 * median(c[1]), {"with masks, ms": "{:.1f}"}),
    Figure("without_ms", lambda c: 1e3 * median(c[2]), {"without, ms": "{:.1f}"}),
    Figure("cost", lambda c: median_ratio(c[1], c[2]), {"with by without": TIMES, "95% interval": AROUND}),
)
"""Figures of the masks: from the number of sequences, and the seconds of verifications with and without."""
SAVING: tuple[Figure[tuple[str, Sequence[Answer], Sequence[Answer]]], ...] = (
    Figure("name", lambda c: c[0], {"setting": "{}"}),
    Figure("tokens_per_s", lambda c: _speed(c[1]), {"tokens/s": "{:.0f}"}),
    Figure(
        "speed_up",
        lambda c: median_ratio([1 / a.seconds for a in c[1]], [1 / a.seconds for a in c[2]]),
        {"by those without": TIMES, "95% interval": AROUND},
    ),
    Figure("per_round", lambda c: _share(c[1], "tokens", "rounds"), {"tokens per round": "{:.2f}"}),
    Figure("forced", lambda c: _share(c[1], "forced", "tokens"), {"free drafts per token": "{:.2f}"}),
    Figure("accepted", lambda c: _share(c[1], "forced_accepted", "forced"), {"accepted": "{:.0%}"}),
)
"""Figures of free drafts: from the setting, its answers and those without."""


def run(plan: Plan, context: Context) -> Report:
    """Measure both parts, and report them together."""
    chosen = context.chosen(PARTS)
    seconds = {
        number: context.parts.measure(
            f"masks-{number}", Seconds, partial(measure_masks, plan, context, number)
        )
        for number in plan.streams
        if "masks" in chosen
    }
    measure: Callable[[], Answers] = partial(measure_free, plan, context)
    answers = context.parts.measure("free", Answers, measure) if "free" in chosen else {}
    return make_report(plan, context, seconds, answers)


def make_report(plan: Plan, context: Context, seconds: Mapping[int, Seconds], answers: Answers) -> Report:
    """Return the report of the parts that were measured."""
    costs = make_rows(COST, [(str(number), each[MASKED], each[UNMASKED]) for number, each in seconds.items()])
    savings = make_rows(SAVING, [(name, own, answers[ASKED]) for name, own in answers.items()])
    goals = [
        Goal(
            f"a verification of {row.name} sequences, with masks by without",
            _MASK_GOAL,
            row.cost,
            is_least=False,
        )
        for row in costs
    ]
    goals += [Goal("free drafts by none", _FREE_GOAL, row.speed_up) for row in savings if row.name == FREE]
    return Report("structured", context.machine, plan, costs=costs, savings=savings).fill(
        machine=context.machine,
        schema=json.dumps(SCHEMA, indent=2),
        vocabulary=VOCABULARY,
        drafts=DRAFTS,
        forward_ms=1e3 * _MODEL.base_s,
        tables=[
            Table.of(title, figures, rows)
            for title, figures, rows in (("The cost of masks", COST, costs), ("Free drafts", SAVING, savings))
            if rows
        ],
        targets=goals,
    )


def _speed(answers: Sequence[Answer]) -> float:
    return share(sum(each.tokens for each in answers), sum(each.seconds for each in answers))


def _share(answers: Sequence[Answer], part: str, whole: str) -> float:
    return share(sum(getattr(each, part) for each in answers), sum(getattr(each, whole) for each in answers))
