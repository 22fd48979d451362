"""Both engines when KV memory is full: which sequence is preempted, and when it comes back."""

import asyncio
from collections.abc import Sequence

import pytest

from flyserve.core.messages import Open
from flyserve.core.sequence import SequenceUpdate
from services.engine.base import Job, Scores
from services.engine.engine import Engine
from services.engine.sequence import EngineSequence
from tests.support.touchy_engine import decode, opened


async def test_a_growing_sequence_preempts_the_one_admitted_last(engine: Engine) -> None:
    first, second, third = [await opened(engine, [number] * 300) for number in (1, 2, 3)]
    expected = {}
    for sequence in (first, second, third):
        expected[sequence] = await engine.run(sequence.score())
    first.extend([4] * 100)
    await engine.run(first.score())
    assert (third.num_computed, second.num_computed) == (0, 300)
    load = engine.load()
    assert (load.preemptions, load.sequences, load.queued) == (1, 3, 0)
    waiting = asyncio.create_task(engine.run(third.score()))
    while engine.load().queued < 1:
        await asyncio.sleep(0)
    assert engine.load().sequences == 2 and not waiting.done()
    assert (await engine.run(second.score())).choices == expected[second].choices
    engine.close(first)
    assert (await waiting).choices == expected[third].choices
    load = engine.load()
    assert (load.preemptions, load.sequences, load.queued) == (1, 2, 0)


async def three_opened(engine: Engine, priorities: Sequence[int] = (0, 0, 0)) -> list[EngineSequence]:
    """Open three sequences of 300 tokens, which fill memory, and compute them."""
    sequences = []
    for index, priority in enumerate(priorities):
        sequences.append(await engine.open(Open("r", 300, priority=priority)))
        sequences[-1].apply(SequenceUpdate(1, 0, (20 + index,) * 300, 0, 0))
        await engine.run(sequences[-1].score())
    return sequences


async def queued(engine: Engine, job: Job[Scores]) -> "asyncio.Task[Scores]":
    """Start a job and return once it waits for memory."""
    task = asyncio.create_task(engine.run(job))
    while engine.load().queued < 1:
        await asyncio.sleep(0)
    return task


async def test_the_last_sequence_preempts_itself_and_none_that_is_older(engine: Engine) -> None:
    first, second, third = await three_opened(engine)
    third.extend([4] * 100)
    task = await queued(engine, third.score())
    assert (first.num_computed, second.num_computed, third.num_computed) == (300, 300, 0)
    await engine.run(first.score())
    engine.close(second)
    await task
    assert third.num_computed == 400 and engine.load().preemptions == 1


async def test_the_lowest_priority_is_preempted_although_it_was_admitted_first(engine: Engine) -> None:
    first, second, third = await three_opened(engine, (-1, 0, 0))
    third.extend([4] * 100)
    await engine.run(third.score())
    assert (first.num_computed, second.num_computed, third.num_computed) == (0, 300, 400)


async def test_a_job_that_waits_for_memory_can_be_cancelled_and_repeated(engine: Engine) -> None:
    first, _, third = await three_opened(engine)
    third.extend([4] * 100)
    task = await queued(engine, third.score())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.run(first.score())
    assert engine.load().queued == 0
    task = await queued(engine, third.score())
    engine.close(first)
    await task
    assert third.num_computed == 400


async def test_an_idle_job_preempts_no_sequence(engine: Engine) -> None:
    first, second, third = await three_opened(engine)
    job = engine.run_when_idle(decode(first, 200))
    while not job.is_done:
        await asyncio.sleep(0)
    await job.cancel()
    assert engine.load().preemptions == 0 and len(first) > 300
    assert (second.num_computed, third.num_computed) == (300, 300)
