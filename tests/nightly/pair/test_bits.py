"""With real weights in bfloat16: a response is the same in modes plain and exact, alone and under load."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import pytest

from demo.tasks import Task, load_tasks
from demo.tokenizer import render
from flyserve import Client, SamplingParams, SpeculationParams
from flyserve.core.grammar import Grammar, GrammarKind
from flyserve.core.types import Mode
from tests.support.processes import Deployment, demo_deployment

NUM_RESPONSES = 200
CONCURRENCY = 16
MAX_NEW_TOKENS = 48
KV_TOKENS = 4096
"""So few that sequences are preempted and computed again."""
PLAIN, EXACT = SpeculationParams(mode=Mode.PLAIN), SpeculationParams(mode=Mode.EXACT)
NAMES = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 6}
COUNTS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 8}
VALUES = (COUNTS, NAMES, {"type": "integer", "minimum": 1, "maximum": 9999}, {"type": "boolean"})
SCHEMAS = [
    {"type": "object", "properties": {"a": a, "b": b}, "required": ["a", "b"], "additionalProperties": False}
    for a, b in product(VALUES, VALUES[:3])
]
SAMPLINGS = (
    SamplingParams(),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(temperature=0.7, top_k=20, repetition_penalty=1.2),
    SamplingParams(presence_penalty=1.0, frequency_penalty=0.4),
    SamplingParams(temperature=1.2, min_p=0.05, ignore_eos=True),
)


class Requests:
    """Requests that share prefixes, with every kind of sampling, and with a grammar in one of three."""

    def __init__(self, address: str, problems: Sequence[Task]) -> None:
        self._client = Client(address)
        self._prompts = [render(task.prompt) for task in problems]

    def tokens(self, number: int, speculation: SpeculationParams) -> tuple[int, ...]:
        """Return the tokens of a response."""
        sampling, schema = SAMPLINGS[number % len(SAMPLINGS)], SCHEMAS[number % len(SCHEMAS)]
        grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)) if number % 3 == 0 else None
        prompt = self._prompts[0] + self._prompts[number % len(self._prompts)]
        response = self._client.generate(
            prompt[: 40 * (1 + number % 9)],
            MAX_NEW_TOKENS,
            _seeded(sampling, number, bool(grammar)),
            speculation,
            grammar=grammar,
        )
        return tuple(token.id for token in response.tokens)

    def json_tokens(
        self, schema: object, temperature: float, speculation: SpeculationParams
    ) -> tuple[int, ...]:
        """Return the tokens of a JSON value."""
        grammar = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
        sampling = SamplingParams(temperature=temperature, seed=7)
        found = self._client.generate(
            self._prompts[1], MAX_NEW_TOKENS, sampling, speculation, grammar=grammar
        )
        return tuple(token.id for token in found.tokens)


def _seeded(sampling: SamplingParams, number: int, has_grammar: bool) -> SamplingParams:
    return replace(sampling, seed=1000 + number, ignore_eos=sampling.ignore_eos and not has_grammar)


@pytest.fixture(scope="module")
def small_deployment() -> Iterator[Deployment]:
    with demo_deployment(num_targets=2, dtype="bfloat16", kv_tokens=KV_TOKENS) as deployment:
        yield deployment


@pytest.fixture(scope="module")
def requests(small_deployment: Deployment) -> Requests:
    return Requests(small_deployment.router.address, load_tasks(24))


@pytest.mark.timeout(3600)
def test_every_response_is_the_same_in_each_mode_alone_and_under_load(requests: Requests) -> None:
    numbers = range(NUM_RESPONSES)
    alone = [requests.tokens(number, PLAIN) for number in numbers]
    with ThreadPoolExecutor(CONCURRENCY) as pool:
        plain = list(pool.map(lambda number: requests.tokens(number, PLAIN), numbers))
        exact = list(pool.map(lambda number: requests.tokens(number, EXACT), reversed(numbers)))[::-1]
    assert [number for number in numbers if plain[number] != alone[number]] == []
    assert [number for number in numbers if exact[number] != alone[number]] == []


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_json_value_is_the_same_in_each_mode(requests: Requests, temperature: float) -> None:
    plain = [requests.json_tokens(schema, temperature, PLAIN) for schema in SCHEMAS]
    assert [requests.json_tokens(schema, temperature, EXACT) for schema in SCHEMAS] == plain
