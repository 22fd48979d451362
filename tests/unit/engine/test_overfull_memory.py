"""Sequences that outgrow KV memory: throughput and recomputed tokens, on a virtual clock."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from fly.messages import Load, Open, Role
from fly.sequence import SequenceMirror, TokenSequence
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


@dataclass(frozen=True)
class Regime:
    """Requests of one length, and KV memory for fewer of them."""

    requests: int
    prompt: int
    new_tokens: int
    kv_tokens: int
    announces: bool = True
    max_queued: int = 1000
    priority: Callable[[int], int] = lambda index: 0


@dataclass(frozen=True)
class Outcome:
    """Tokens per second of the virtual clock, the engine's counts, and the seconds of each request."""

    tokens_per_s: float
    load: Load
    ended_s: list[float]


async def request(engine: Engine, clock: VirtualClock, regime: Regime, index: int, limit: int = 0) -> float:
    """Decode one response token by token; return the time of its end. `limit` is its announced length."""
    prompt = [40 + index, *((place * (index + 1)) % 3000 + 20 for place in range(regime.prompt - 1))]
    opening = Open(
        request_id=str(index),
        prompt_length=len(prompt),
        priority=regime.priority(index),
        max_new_tokens=(limit or regime.new_tokens) if regime.announces else 0,
    )
    known, mirror = TokenSequence(prompt), SequenceMirror()
    sequence = await engine.open(opening)
    for _ in range(regime.new_tokens):
        sequence.apply(mirror.update(known, (), len(known)))
        scores = await engine.run(sequence.score(), opening.priority)
        known.extend(scores.choices)
        await clock.sleep(ROUND_TRIP_S)
    engine.close(sequence)
    return clock.now()


def run(regime: Regime, at_once: int = 1000) -> Outcome:
    """Send all requests, at most `at_once` at a time."""

    async def live() -> Outcome:
        clock, places = VirtualClock(), asyncio.Semaphore(at_once)
        runner = SimulatedRunner(COSTS, Role.TARGET, 1000, regime.kv_tokens)
        engine = ClockEngine(runner, clock, ModelSection(max_queued=regime.max_queued))
        await engine.start()

        async def one(index: int) -> float:
            async with places:
                return await request(engine, clock, regime, index)

        ended = await clock.run(one(index) for index in range(regime.requests))
        await engine.stop()
        load = engine.load()
        return Outcome(regime.requests * regime.new_tokens / clock.now(), load, ended)

    return asyncio.run(live())


@pytest.mark.parametrize("announces", [True, False])
def test_four_times_as_many_responses_as_fit_cost_little_throughput(announces: bool) -> None:
    regime = Regime(requests=48, prompt=64, new_tokens=400, kv_tokens=12 * 464, announces=announces)
    fitting, overfull = run(regime, at_once=10), run(regime)
    assert overfull.tokens_per_s >= 0.85 * fitting.tokens_per_s
    if announces:
        assert overfull.load.prefill_tokens <= 1.5 * regime.requests * regime.prompt


def test_responses_that_become_much_longer_than_before_cost_little() -> None:
    """The expected growth was learned from short responses; each sequence is computed again a few times."""

    async def live() -> tuple[float, Load]:
        clock = VirtualClock()
        runner = SimulatedRunner(COSTS, Role.TARGET, 1000, 16 * 500)
        engine = ClockEngine(runner, clock, ModelSection(max_queued=1000))
        await engine.start()
        for new_tokens in (4, 400):
            began = clock.now()
            regime = Regime(requests=32, prompt=100, new_tokens=new_tokens, kv_tokens=0)
            await clock.run(request(engine, clock, regime, index, limit=400) for index in range(32))
        load = engine.load()
        await engine.stop()
        return 32 * 400 / (clock.now() - began), load

    tokens_per_s, load = asyncio.run(live())
    fitting = run(Regime(requests=32, prompt=100, new_tokens=400, kv_tokens=16 * 500), at_once=15)
    assert 0 < load.preemptions < 64
    assert tokens_per_s >= 0.85 * fitting.tokens_per_s
