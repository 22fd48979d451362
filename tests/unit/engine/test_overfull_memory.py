"""Sequences that outgrow KV memory: throughput and recomputed tokens, on a virtual clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from flyserve.core.messages import Load, Open, Role
from flyserve.core.sequence import SequenceMirror, TokenSequence
from services.engine.config import ModelSection
from services.engine.engine import Engine
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from tests.support.clock import VirtualClock

COSTS = SimulatedConfig(
    vocab_size=4096,
    context_length=200_000,
    response_tokens=(100_000, 100_000),
    base_s=0.02,
    per_token_s=0.0002,
    per_token_above_s=0.0002,
)
ROUND_TRIP_S = 0.001
"""From an answer to the client's next step."""


@asynccontextmanager
async def running(kv_tokens: int) -> AsyncIterator[tuple[Engine, VirtualClock]]:
    clock = VirtualClock()
    runner = SimulatedRunner(COSTS, Role.TARGET, 1000, kv_tokens)
    engine = ClockEngine(runner, clock, ModelSection(max_queued=1000))
    await engine.start()
    yield engine, clock
    await engine.stop()


async def request(
    engine: Engine, clock: VirtualClock, index: int, prompt_tokens: int, new_tokens: int, announced: int
) -> None:
    """Decode one response token by token; its length was announced, or not if that is 0."""
    prompt = [40 + index, *((place * (index + 1)) % 3000 + 20 for place in range(prompt_tokens - 1))]
    known, mirror = TokenSequence(prompt), SequenceMirror()
    sequence = await engine.open(Open(str(index), len(prompt), max_new_tokens=announced))
    for _ in range(new_tokens):
        sequence.apply(mirror.update(known, (), len(known)))
        scores = await engine.run(sequence.score())
        known.extend(scores.choices)
        await clock.sleep(ROUND_TRIP_S)
    engine.close(sequence)


async def run(
    requests: int, prompt: int, kv_tokens: int, announced: int = 400, at_once: int = 1000
) -> tuple[float, Load]:
    """Send requests for 400 tokens, at most `at_once` at a time; return tokens per second and the load."""
    async with running(kv_tokens) as (engine, clock):
        places = asyncio.Semaphore(at_once)

        async def one(index: int) -> None:
            async with places:
                await request(engine, clock, index, prompt, 400, announced)

        await clock.run(one(index) for index in range(requests))
        return requests * 400 / clock.now(), engine.load()


@pytest.mark.parametrize("announced", [400, 0])
async def test_four_times_as_many_responses_as_fit_cost_little_throughput(announced: int) -> None:
    fitting, _ = await run(48, 64, 12 * 464, announced, at_once=10)
    overfull, load = await run(48, 64, 12 * 464, announced)
    assert overfull >= 0.85 * fitting
    if announced:
        assert load.prefill_tokens <= 1.5 * 48 * 64


async def test_responses_that_become_much_longer_than_before_cost_little() -> None:
    """The expected growth was learned from short responses; each sequence is computed again a few times."""
    async with running(16 * 500) as (engine, clock):
        for new_tokens in (4, 400):
            began = clock.now()
            await clock.run(request(engine, clock, index, 100, new_tokens, 400) for index in range(32))
        tokens_per_s = 32 * 400 / (clock.now() - began)
        assert 0 < engine.load().preemptions < 64
    fitting, _ = await run(32, 100, 16 * 500, at_once=15)
    assert tokens_per_s >= 0.85 * fitting
