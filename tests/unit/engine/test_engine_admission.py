"""Admission: reject sequences that can never fit, queue others, and do not disturb open ones."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from flyserve.core.clock import SystemClock
from flyserve.core.errors import InvalidRequest, Overloaded
from flyserve.core.messages import Open, Role
from flyserve.core.sequence import SequenceUpdate, TokenSequence
from services.engine.config import ModelSection
from services.engine.engine import Engine
from services.engine.forward.padding import Padding
from services.engine.sequence import EngineSequence
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner

KV_TOKENS = 512


def config(context_length: int) -> SimulatedConfig:
    return SimulatedConfig(context_length=context_length, base_s=0.0, per_token_s=0.0, per_token_above_s=0.0)


@pytest.fixture(params=[256, 4096])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    runner = SimulatedRunner(config(request.param), Role.TARGET, 8, KV_TOKENS)
    engine = ClockEngine(runner, SystemClock(), ModelSection(max_queued=2))
    await engine.start()
    yield engine
    await engine.stop()


async def opened(engine: Engine, num_tokens: int, max_new_tokens: int = 0) -> EngineSequence:
    sequence = await engine.open(Open("r", num_tokens, max_new_tokens=max_new_tokens))
    sequence.apply(SequenceUpdate(1, 0, (20,) * num_tokens, 0, 0))
    return sequence


async def decode(engine: Engine, sequence: EngineSequence, num_tokens: int) -> None:
    for _ in range(num_tokens):
        sequence.extend((await engine.run(sequence.score())).choices)


async def test_a_prompt_that_can_never_fit_is_rejected_by_the_limit_that_it_breaks(engine: Engine) -> None:
    running = await opened(engine, 200)
    limit = engine.info.context_length
    limited_by = {256: "the model", KV_TOKENS: "KV memory"}[limit]
    task = asyncio.create_task(decode(engine, running, 20))
    with pytest.raises(InvalidRequest) as caught:
        await engine.open(Open("r", limit + 1))
    assert (
        str(caught.value) == f"prompt_length is {limit + 1}, must be 0 to {limit} (limited by {limited_by})"
    )
    await task
    await decode(engine, await opened(engine, 200), 1)


async def test_a_step_past_the_limit_is_rejected_and_the_sequence_continues(engine: Engine) -> None:
    limit = engine.context_length
    sequence = await opened(engine, limit - 1)
    await decode(engine, sequence, 1)
    ids = sequence.tokens.ids
    with pytest.raises(InvalidRequest) as caught:
        sequence.apply(SequenceUpdate(2, limit, (20,), 0, TokenSequence(ids).prefix_hash(limit)))
    assert str(caught.value) == f"update.tokens make {limit + 1} tokens, the context holds {limit}"
    sequence.extend([20])
    with pytest.raises(InvalidRequest, match=f"are {limit + 1}, must be at most {limit}, the context length"):
        await engine.run(sequence.score())
    sequence.truncate(limit)
    await engine.run(sequence.score())


async def test_a_full_memory_queues_new_sequences_and_disturbs_no_open_one(engine: Engine) -> None:
    sequences = [await opened(engine, 192, max_new_tokens=60) for _ in range(2)]
    waiting, another = (asyncio.create_task(engine.open(Open(name, 192, max_new_tokens=60))) for name in "wv")
    while engine.load().queued < 2:
        await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await engine.open(Open("x", 64))
    assert str(caught.value) == "2 sequences are open and 2 are queued; 384 of 512 KV positions are in use"
    for sequence in sequences:
        await decode(engine, sequence, 40)
    assert not waiting.done() and engine.load().sequences == 2
    another.cancel()
    engine.close(sequences[0])
    assert (await waiting).opening.request_id == "w"
    await decode(engine, sequences[1], 20)


async def test_an_open_that_may_not_wait_is_refused_at_once(engine: Engine) -> None:
    sequences = [await engine.open(Open("r", 192), queue=False) for _ in range(2)]
    with pytest.raises(Overloaded, match="2 sequences are open and 0 are queued"):
        await engine.open(Open("x", 192), queue=False)
    assert engine.load().queued == 0
    engine.close(sequences[0])
    assert (await engine.open(Open("y", 192), queue=False)).opening.request_id == "y"


class PaddedRunner(SimulatedRunner):
    """A runner whose memory has parts for several positions more than a sequence has."""

    def whole(self, num_tokens: int) -> int:
        return Padding(4, (192, 384, 512)).padded_keys(num_tokens)


async def test_sequences_whose_padding_will_not_fit_together_wait_for_each_other() -> None:
    runner = PaddedRunner(config(512), Role.TARGET, 8, 704)
    engine = ClockEngine(runner, SystemClock(), ModelSection(max_queued=2))
    await engine.start()
    first = await opened(engine, 100, max_new_tokens=150)
    waiting = asyncio.create_task(opened(engine, 100, max_new_tokens=150))
    await decode(engine, first, 150)
    assert not waiting.done() and engine.load().queued == 1
    engine.close(first)
    await decode(engine, await waiting, 150)
    assert engine.load().preemptions == 0
    await engine.stop()
