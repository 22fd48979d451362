"""Generated requests with schemas of the JSON Schema Test Suite: all valid, and `exact` equals `plain`.

A run has 150 requests; FLYSERVE_SCHEMA_REQUESTS=2000 sends all of them (docs/structured-output.md).
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from flyserve import AsyncClient, Choice, DraftLength, SamplingParams, SpeculationParams
from flyserve.core.errors import InvalidRequest
from flyserve.core.types import FinishReason, Mode
from tests.contract.grammar_rig import of_schema, serving_pair
from tests.support.processes import ROOT

REQUESTS = int(os.environ.get("FLYSERVE_SCHEMA_REQUESTS", "150"))
ALL, MAX_NEW_TOKENS, AT_ONCE, DRAFT_LENGTHS = 2000, 96, 8, 16
SUITE = json.loads((ROOT / "tests/data/json_schema_suite.json").read_text(encoding="utf-8"))["schemas"]
PLAIN = SpeculationParams(mode=Mode.PLAIN)
WAYS = (
    PLAIN,
    SpeculationParams(mode=Mode.EXACT),
    SpeculationParams(mode=Mode.FLY),
    SpeculationParams(mode=Mode.EXACT),
    SpeculationParams(mode=Mode.FLY, preset="official"),
    SpeculationParams(mode=Mode.DRAFT),
)

pytestmark = pytest.mark.timeout(7200)


@dataclass(frozen=True)
class Case:
    """One generated request; its number makes everything about it."""

    number: int
    schema: Any
    title: str

    @property
    def draft_length(self) -> int:
        return self.number // (2 * len(WAYS)) % DRAFT_LENGTHS

    @property
    def speculation(self) -> SpeculationParams:
        way = WAYS[self.number // 2 % len(WAYS)]
        if way.mode in (Mode.PLAIN, Mode.DRAFT):
            return way
        return replace(way, draft_length=DraftLength(max=self.draft_length))

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(temperature=float(self.number % 2), seed=self.number)

    async def send(self, client: AsyncClient, speculation: SpeculationParams) -> Choice:
        prompt = f"Q: Tom has {self.number} apples and eats {self.number % 7}. How many are left?\n"
        grammar = of_schema(self.schema)
        response = await client.generate(prompt, MAX_NEW_TOKENS, self.sampling, speculation, grammar=grammar)
        return response.choices[0]


@dataclass
class Outcome:
    """Counts of the requests, and the faults that were found."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def check(self, case: Case, choice: Choice, plain: Choice | None) -> None:
        what = f"{case.number} {case.title} {case.schema} {case.speculation.mode}: {choice.text!r}"
        if choice.finish_reason is FinishReason.LENGTH:
            self.counts["cut by max_new_tokens"] += 1
        else:
            self.counts["complete"] += 1
            self.faults += [f"{what}: {fault}" for fault in faults_of(choice.text, case.schema)]
        self.counts[f"{case.speculation.mode.value}, temperature {case.number % 2}"] += 1
        if plain is not None:
            self.counts["compared with plain"] += 1
            if [token.id for token in choice.tokens] != [token.id for token in plain.tokens]:
                self.faults.append(f"{what}: plain has {plain.text!r}")


def exact_multiples(_: Any, divisor: Any, value: Any, __: Any) -> Iterator[ValidationError]:
    """Check `multipleOf` in decimals: in binary fractions 21.4 is no multiple of 0.0001."""
    if isinstance(value, int | float) and Fraction(str(value)) % Fraction(str(divisor)):
        yield ValidationError(f"{value} is not a multiple of {divisor}")


Validator = extend(Draft202012Validator, {"multipleOf": exact_multiples})


def faults_of(text: str, schema: Any) -> list[str]:
    try:
        value = json.loads(text)
    except ValueError as error:
        return [str(error)]
    return [error.message for error in Validator(schema).iter_errors(value)]


async def supported(client: AsyncClient) -> tuple[list[Mapping[str, Any]], Counter[str]]:
    """Return the schemas that the router takes, and the reasons why it refuses others."""
    taken, refused = [], Counter[str]()
    for each in SUITE:
        try:
            await client.generate("Q", 1, grammar=of_schema(each["schema"]))
            taken.append(each)
        except InvalidRequest as error:
            (violation,) = error.violations
            assert violation.field == "grammar"
            refused[violation.description] += 1
    return taken, refused


def cases_of(schemas: Sequence[Mapping[str, Any]]) -> list[Case]:
    """Return a fixed selection of all cases; neighbours have other schemas."""
    numbers = sorted(random.Random(1).sample(range(ALL), REQUESTS))
    picked = [schemas[(number + number // len(schemas)) % len(schemas)] for number in numbers]
    return [Case(number, each["schema"], each["title"]) for number, each in zip(numbers, picked, strict=True)]


async def test_responses_keep_to_the_schemas_of_the_test_suite() -> None:
    outcome, places = Outcome(), asyncio.Semaphore(AT_ONCE)
    async with serving_pair() as (router, _), AsyncClient(router.address) as client:
        schemas, refused = await supported(client)

        async def try_case(case: Case) -> None:
            async with places:
                choice = await case.send(client, case.speculation)
                is_exact = case.speculation.mode is Mode.EXACT
                outcome.check(case, choice, await case.send(client, PLAIN) if is_exact else None)

        await asyncio.gather(*map(try_case, cases_of(schemas)))
    print(f"{len(schemas)} of {len(SUITE)} schemas taken; refused: {dict(refused.most_common())}")
    print(dict(outcome.counts))
    assert not outcome.faults, "\n".join([f"{len(outcome.faults)} faults", *outcome.faults[:40]])
    assert len(schemas) >= 164 and outcome.counts["complete"] > REQUESTS // 2
    assert all(reason.startswith("cannot be used as json_schema: ") for reason in refused)
    lengths = {case.draft_length for case in cases_of(schemas)}
    assert lengths == set(range(DRAFT_LENGTHS)) and len(outcome.counts) == 2 * len(Mode) + 3
