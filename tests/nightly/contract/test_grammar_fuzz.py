"""Random valid, expensive grammars beside a plain stream: each is served or refused, and the stream goes on.

Twenty-four are sent; FLYSERVE_GRAMMAR_FUZZ_S=120 sends them for two minutes, from another seed each time.
"""

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from flyserve import AsyncClient, SamplingParams, SpeculationParams
from flyserve.core.errors import InvalidRequest
from flyserve.core.types import Mode
from tests.contract.grammar_rig import of_lark, of_schema, serving_pair
from tests.nightly.contract.grammar_maker import LINKS, RULES, hostile, lark_chain, schema_chain

SECONDS = float(os.environ.get("FLYSERVE_GRAMMAR_FUZZ_S", "0"))
SEED = 7 if not SECONDS else time.time_ns()
GRAMMARS, CLIENTS, MOST_GAP_S = 24, 3, 1.0
PLAIN = SpeculationParams(mode=Mode.PLAIN)
PROMPT = "Q: Tom has 3 apples and eats 1. How many are left?\n"

pytestmark = pytest.mark.timeout(600 + 3 * SECONDS)


@pytest.fixture
async def client() -> AsyncIterator[AsyncClient]:
    async with serving_pair() as (router, _), AsyncClient(router.address) as client:
        yield client


async def outcome(client: AsyncClient, grammar: object, seed: int) -> str:
    """Return how a request ends; any other error than a fault of the grammar fails the test."""
    speculation = PLAIN if seed % 2 else SpeculationParams(mode=Mode.EXACT)
    sampling = SamplingParams(temperature=1.5, seed=seed)
    try:
        await client.generate(PROMPT, 24, sampling, speculation, grammar=grammar)  # type: ignore[arg-type]
    except InvalidRequest as error:
        assert [violation.field for violation in error.violations] == ["grammar"] and len(str(error)) < 4096
        return "refused"
    return "served"


async def gaps_of_a_stream(client: AsyncClient, end: asyncio.Event) -> list[float]:
    """Return the CPU seconds of this process, which serves everything, between the tokens of streams."""
    gaps, before = [], time.process_time()
    sampling = SamplingParams(ignore_eos=True)
    while not end.is_set():
        async with client.stream(PROMPT, 400, sampling, PLAIN) as stream:
            async for _ in stream:
                now = time.process_time()
                gaps.append(now - before)
                before = now
                if end.is_set():
                    break
    return gaps


async def test_a_stream_goes_on_beside_expensive_grammars(client: AsyncClient) -> None:
    print(f"seed {SEED}")
    rng, outcomes, end = random.Random(SEED), Counter[tuple[str, str]](), asyncio.Event()
    numbers, until = itertools.count(), time.monotonic() + SECONDS

    async def send() -> None:
        while (number := next(numbers)) < GRAMMARS or time.monotonic() < until:
            name, grammar = hostile(rng)
            outcomes[name, await outcome(client, grammar, number)] += 1

    gaps = asyncio.create_task(gaps_of_a_stream(client, end))
    await asyncio.gather(*(send() for _ in range(CLIENTS)))
    end.set()
    found = await gaps
    for (name, result), number in sorted(outcomes.items()):
        print(f"{number:4} {name}: {result}")
    print(
        f"{outcomes.total()} grammars, {len(found)} tokens beside, longest gap {max(found):.3f} s of CPU time"
    )
    assert max(found) < MOST_GAP_S


CHAINS = {
    **{link: of_schema(schema_chain(link, 3000)) for link in LINKS},
    **{rule: of_lark(lark_chain(rule, 9000)) for rule in RULES},
    "terminal": of_lark(lark_chain("rule", 9000, "T")),
    "short": of_schema(schema_chain("$ref", 600)),
}


async def test_a_chain_through_any_keyword_is_served_or_refused(client: AsyncClient) -> None:
    found = {name: await outcome(client, grammar, 1) for name, grammar in CHAINS.items()}
    assert found["short"] == "served" and found["rule"] == "refused"
    assert (await client.generate(PROMPT, 4)).text
