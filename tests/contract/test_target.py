"""The target's stream over a real socket, with a simulated engine."""

from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import pytest

from fly.clock import SystemClock
from fly.errors import InvalidRequest
from fly.messages import Open, Role
from fly.request import SamplingParams
from fly.sequence import TokenSequence
from protos.flyserve.v1 import common_pb2, target_pb2
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from protos.wire.streams import info_from_wire
from services.common.streams import TargetStream
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.target.servicer import host_engine
from tests.support.serving import becomes_true, connected

PROMPT = [20, 21, 22, 23]
OPENING = Open("test", prompt_length=len(PROMPT), sampling=SamplingParams(stop_token_ids=(2,)))


@pytest.fixture
async def engine() -> AsyncIterator[ClockEngine]:
    runner = SimulatedRunner(
        SimulatedConfig(base_s=0.0, per_token_s=0.0), Role.TARGET, max_sequences=4, kv_tokens=4096
    )
    engine = ClockEngine(runner, SystemClock())
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
async def channel(engine: ClockEngine) -> AsyncIterator[grpc.aio.Channel]:
    async with connected(host_engine(engine)) as channel:
        yield channel


async def greedy(channel: grpc.aio.Channel, count: int) -> list[int]:
    """Return the tokens of plain decoding."""
    sequence = TokenSequence(PROMPT)
    async with TargetStream(channel, OPENING) as stream:
        for _ in range(count):
            verification = await stream.verify(sequence, [], len(sequence))
            sequence.extend(verification.choices)
    return sequence.ids[len(PROMPT) :]


async def test_info_is_the_handshake(channel: grpc.aio.Channel, engine: ClockEngine) -> None:
    info, _ = info_from_wire(await TargetStub(channel).Info(common_pb2.InfoRequest()))
    assert info == engine.info


async def test_a_draft_is_scored_at_every_position(channel: grpc.aio.Channel) -> None:
    expected = await greedy(channel, 6)
    async with TargetStream(channel, OPENING) as stream:
        verification = await stream.verify(TokenSequence(PROMPT), expected[:5], len(PROMPT))
    assert list(verification.choices) == expected
    assert len(verification.entropies) == 6
    assert verification.times.batch_size == 1
    assert verification.load.sequences == 1


async def test_rollback_and_growth_leave_no_trace(channel: grpc.aio.Channel) -> None:
    expected = await greedy(channel, 8)
    sequence = TokenSequence(PROMPT)
    async with TargetStream(channel, OPENING) as stream:
        await stream.verify(sequence, [99, 98, 97, 96], len(sequence))
        sequence.extend(expected[:3])
        await stream.verify(sequence, [95, *expected[4:6]], len(sequence))
        verification = await stream.verify(sequence, expected[3:7], len(sequence))
    assert list(verification.choices) == expected[3:8]
    assert stream.replays == 0


@pytest.mark.parametrize(("salt", "reused"), [("", 48), ("other", 0)])
async def test_a_verification_reports_the_tokens_that_were_reused(
    channel: grpc.aio.Channel, salt: str, reused: int
) -> None:
    prompt = TokenSequence(range(20, 70))
    for cache_salt, expected in (("", 0), (salt, reused)):
        async with TargetStream(channel, replace(OPENING, cache_salt=cache_salt)) as stream:
            verification = await stream.verify(prompt, [90, 91], len(prompt))
        times, load = verification.times, verification.load
        assert times.reused_tokens == load.reused_tokens == expected
        assert times.prefill_tokens == 49 - expected and times.batch_tokens == 52 - expected
        assert load.kv_used == 64


async def test_a_lost_sequence_is_replayed_on_the_same_stream(channel: grpc.aio.Channel) -> None:
    expected = await greedy(channel, 3)
    call = TargetStub(channel).Verify()
    opening = common_pb2.Open(prompt_length=4)
    await call.write(target_pb2.VerifyRequest(open=opening))
    update = common_pb2.SequenceUpdate(step_id=7, keep=4, tokens=[expected[0]], decided=4)
    await call.write(target_pb2.VerifyRequest(step=target_pb2.VerifyStep(update=update)))
    answer = await call.read()
    assert (answer.stale.step_id, answer.stale.reason) == (7, common_pb2.STALE_REASON_BEYOND_STATE)
    update = common_pb2.SequenceUpdate(step_id=8, keep=0, tokens=[*PROMPT, *expected[:2]], decided=4)
    await call.write(target_pb2.VerifyRequest(step=target_pb2.VerifyStep(update=update, num_drafts=1)))
    answer = await call.read()
    assert answer.verification.step_id == 8
    assert list(answer.verification.choices) == expected[1:3]
    await call.write(target_pb2.VerifyRequest(close=common_pb2.Close()))
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("ending", ["cancel", "half_close", "close"])
async def test_the_state_of_a_stream_is_freed_however_it_ends(
    channel: grpc.aio.Channel, engine: ClockEngine, ending: str
) -> None:
    call = TargetStub(channel).Verify()
    opening = common_pb2.Open(prompt_length=4)
    await call.write(target_pb2.VerifyRequest(open=opening))
    update = common_pb2.SequenceUpdate(step_id=1, tokens=PROMPT, decided=4)
    await call.write(target_pb2.VerifyRequest(step=target_pb2.VerifyStep(update=update)))
    await call.read()
    assert engine.load().sequences == 1
    if ending == "cancel":
        call.cancel()
    elif ending == "half_close":
        await call.done_writing()
    else:
        await call.write(target_pb2.VerifyRequest(close=common_pb2.Close()))
    assert await becomes_true(lambda: engine.load().sequences == 0, within_s=10.0)
    assert engine.load().kv_used == 0


async def _error_of(channel: grpc.aio.Channel, *requests: target_pb2.VerifyRequest) -> grpc.aio.AioRpcError:
    call = TargetStub(channel).Verify()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        for request in requests:
            await call.write(request)
        while await call.read() is not grpc.aio.EOF:
            pass
    return error.value


async def test_messages_out_of_order_are_rejected_by_name(channel: grpc.aio.Channel) -> None:
    step = target_pb2.VerifyRequest(step=target_pb2.VerifyStep())
    opening = target_pb2.VerifyRequest(open=common_pb2.Open())
    for requests in [(step,), (opening, opening), (target_pb2.VerifyRequest(),)]:
        error = await _error_of(channel, *requests)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "kind" in (error.details() or "")


@pytest.mark.parametrize(
    ("tokens", "num_drafts", "field"),
    [([1024], 0, "update.tokens[0]"), ([20, 21], 2, "num_drafts"), ([20] * 5000, 0, "update.tokens")],
)
async def test_values_beyond_a_limit_are_rejected_by_name(
    channel: grpc.aio.Channel, tokens: list[int], num_drafts: int, field: str
) -> None:
    async with TargetStream(channel, OPENING) as stream:
        with pytest.raises(InvalidRequest) as error:
            await stream.verify(
                TokenSequence(tokens[: len(tokens) - num_drafts]), tokens[len(tokens) - num_drafts :], 0
            )
    assert error.value.violations[0].field == field
    assert await greedy(channel, 2), "the server must continue to serve"
