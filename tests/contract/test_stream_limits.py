"""Misbehaving streams: silent, half open, out of order, too many, past their deadline."""

import asyncio
from dataclasses import replace
from unittest.mock import AsyncMock

import grpc
import pytest

from flyserve.core.errors import DeadlineExceeded, InvalidRequest, NotReady
from flyserve.core.messages import Open, Verification
from flyserve.core.sequence import TokenSequence
from flyserve.v1 import common_pb2, target_pb2
from services.common import stream_server
from services.common.streams import TargetStream
from services.engine.simulation.clock_engine import ClockEngine
from tests.contract.engine_rig import PROMPT
from tests.contract.fakes import FakeTarget, HashModel
from tests.support.raw_streams import RawSequence, RawStream
from tests.support.serving import becomes_true, serving

TIMEOUT_S = 240.0
OPENING = Open("test", prompt_length=len(PROMPT))
OPEN = target_pb2.VerifyRequest(open=common_pb2.Open(prompt_length=4))
CLOSE = target_pb2.VerifyRequest(close=common_pb2.Close())


def step(step_id: int) -> target_pb2.VerifyRequest:
    update = common_pb2.SequenceUpdate(step_id=step_id, tokens=PROMPT, decided=4)
    return target_pb2.VerifyRequest(step=target_pb2.VerifyStep(update=update))


async def verifies(channel: grpc.aio.Channel) -> bool:
    async with TargetStream(channel, OPENING) as stream:
        return bool((await stream.verify(TokenSequence(PROMPT), [], len(PROMPT))).choices)


async def is_freed(engine: ClockEngine) -> bool:
    return await becomes_true(lambda: (engine.load().sequences, engine.load().kv_used) == (0, 0), TIMEOUT_S)


async def test_an_idle_stream_is_ended(
    channel: grpc.aio.Channel, engine: ClockEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_server, "IDLE_TTL_S", 0.5)
    for messages in [(OPEN,), (OPEN, step(1))]:
        call = RawSequence(channel)
        for message in messages:
            await call.write(message)
        if step(1) in messages:
            await call.read()
        async with asyncio.timeout(TIMEOUT_S):
            error = await call.error()
        assert error.code() is grpc.StatusCode.UNAVAILABLE, "the request may go on elsewhere"
        assert "idle" in str(error.details())
    assert await is_freed(engine)


async def test_steps_after_a_close_are_not_answered(channel: grpc.aio.Channel, engine: ClockEngine) -> None:
    call = RawSequence(channel)
    for message in (OPEN, step(1), CLOSE, step(2)):
        await call.write(message)
    answer = await call.read()
    assert isinstance(answer, target_pb2.VerifyResponse) and answer.verification.step_id == 1
    assert await call.read() is grpc.aio.EOF
    assert await is_freed(engine)


async def test_a_stream_ends_at_the_deadline_of_its_request_even_if_its_client_does_not_end_it(
    channel: grpc.aio.Channel, engine: ClockEngine
) -> None:
    async with TargetStream(channel, replace(OPENING, deadline_ms=1000)) as stream:
        await stream.verify(TokenSequence(PROMPT), [], len(PROMPT))
        assert await is_freed(engine)
        with pytest.raises((DeadlineExceeded, NotReady)):
            await stream.verify(TokenSequence([*PROMPT, 24]), [], len(PROMPT))


@pytest.mark.parametrize("deadline_ms", [86_400_001, 2**64 - 1])
async def test_a_deadline_of_more_than_a_day_is_an_error_of_its_field(
    channel: grpc.aio.Channel, deadline_ms: int
) -> None:
    async with TargetStream(channel, replace(OPENING, deadline_ms=deadline_ms)) as stream:
        with pytest.raises(InvalidRequest, match=rf"deadline_ms is {deadline_ms}, must be at most 86400000"):
            await stream.verify(TokenSequence(PROMPT), [], len(PROMPT))


async def test_a_client_that_reads_its_first_answer_after_the_deadline_gets_an_error() -> None:
    target = FakeTarget(HashModel())
    # Larger than the flow-control window of a connection, unless the window grows (bdp_probe).
    answer = Verification(0, choices=(7,) * 50_000, entropies=(1.0,) * 50_000)
    target.script = AsyncMock(return_value=answer)
    options = (("grpc.http2.bdp_probe", 0),)
    async with serving(target.host) as address, grpc.aio.insecure_channel(address, options) as channel:
        call = RawSequence(channel)
        opening = common_pb2.Open(prompt_length=4, deadline_ms=300)
        await call.write(target_pb2.VerifyRequest(open=opening))
        await call.write(step(1))
        assert await becomes_true(lambda: target.num_opened == 1 and not target.num_open, TIMEOUT_S)
        async with asyncio.timeout(TIMEOUT_S):
            response = await call.read()
            assert isinstance(response, target_pb2.VerifyResponse)
            assert len(response.verification.choices) == 50_000
            assert (await call.error()).code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_two_thousand_sequences_without_a_step_open_no_sequence(
    channel: grpc.aio.Channel, engine: ClockEngine
) -> None:
    stream = RawStream(channel)
    for part in range(4):
        await stream.send(*((500 * part + number, OPEN) for number in range(500)))
        assert await verifies(channel)
    assert not stream.call.done()
    stream.call.cancel()
    assert await verifies(channel) and await is_freed(engine)


async def test_a_queued_step_fails_when_its_call_is_cancelled(
    channel: grpc.aio.Channel, engine: ClockEngine
) -> None:
    blockers = [TargetStream(channel, OPENING) for _ in range(4)]
    for blocker in blockers:
        await blocker.verify(TokenSequence(PROMPT), [], len(PROMPT))
    stream = TargetStream(channel, OPENING)
    waiting = asyncio.create_task(stream.verify(TokenSequence(PROMPT), [], len(PROMPT)))
    assert await becomes_true(lambda: engine.load().queued == 1, TIMEOUT_S)
    stream.cancel()
    with pytest.raises(NotReady):
        await waiting
    for blocker in blockers:
        blocker.cancel()
    assert await is_freed(engine)
