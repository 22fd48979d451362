"""The target's stream over a real socket and within a process, with a simulated engine."""

from dataclasses import replace
from typing import Any

import grpc
import pytest

from flyserve.core.errors import InvalidRequest
from flyserve.core.messages import Open
from flyserve.core.request import SamplingParams
from flyserve.core.sequence import TokenSequence
from flyserve.v1 import common_pb2, target_pb2
from flyserve.v1.target_pb2_grpc import TargetStub
from flyserve.wire.streams import info_from_wire
from services.common.streams import TargetStream
from services.engine.simulation.clock_engine import ClockEngine
from tests.contract.engine_rig import PROMPT
from tests.support.raw_streams import RawSequence
from tests.support.serving import becomes_true

OPENING = Open("test", prompt_length=len(PROMPT), sampling=SamplingParams(stop_token_ids=(2,)))


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
    call = RawSequence(channel)
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


@pytest.mark.parametrize("ending", ["cancel", "half_close", "close"])
async def test_the_state_of_a_stream_is_freed_however_it_ends(
    channel: grpc.aio.Channel, engine: ClockEngine, ending: str
) -> None:
    call = RawSequence(channel)
    opening = common_pb2.Open(prompt_length=4)
    await call.write(target_pb2.VerifyRequest(open=opening))
    update = common_pb2.SequenceUpdate(step_id=1, tokens=PROMPT, decided=4)
    await call.write(target_pb2.VerifyRequest(step=target_pb2.VerifyStep(update=update)))
    await call.read()
    assert engine.load().sequences == 1
    if ending == "cancel":
        call.cancel()
    elif ending == "half_close":
        await call.call.done_writing()
    else:
        await call.write(target_pb2.VerifyRequest(close=common_pb2.Close()))
    assert await becomes_true(lambda: engine.load().sequences == 0, within_s=240.0)
    assert engine.load().kv_used == 0


async def _error_of(channel: grpc.aio.Channel, *requests: target_pb2.VerifyRequest) -> grpc.aio.AioRpcError:
    call = RawSequence(channel)
    for request in requests:
        await call.write(request)
    return await call.error()


async def test_messages_out_of_order_are_rejected_by_name(channel: grpc.aio.Channel) -> None:
    step = target_pb2.VerifyRequest(step=target_pb2.VerifyStep())
    opening = target_pb2.VerifyRequest(open=common_pb2.Open())
    for requests in [(step,), (opening, opening), (target_pb2.VerifyRequest(),)]:
        error = await _error_of(channel, *requests)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (error.details() or "").startswith("open ")


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


async def test_an_extension_is_plain_decoding_in_one_message(channel: grpc.aio.Channel) -> None:
    expected = await greedy(channel, 9)
    sequence = TokenSequence(PROMPT)
    async with TargetStream(channel, OPENING) as stream:
        first = await stream.extend(sequence, len(sequence), 5)
        sequence.extend(first.choices)
        second = await stream.extend(sequence, len(sequence), 3)
        sequence.extend(second.choices)
        last = await stream.verify(sequence, [], len(sequence))
    assert [*first.choices, *second.choices, *last.choices] == expected
    assert [len(each.entropies) for each in (first, second, last)] == [5, 3, 1]
    assert stream.replays == 0


async def test_entropies_are_left_out_where_nobody_uses_them(channel: grpc.aio.Channel) -> None:
    sequence, opening = TokenSequence(PROMPT), replace(OPENING, without_entropies=True)
    async with TargetStream(channel, opening) as stream:
        extension = await stream.extend(sequence, len(sequence), 5)
        verification = await stream.verify(sequence, extension.choices[:4], len(sequence))
    assert list(extension.choices) == list(verification.choices) == await greedy(channel, 5)
    assert not extension.entropies and not verification.entropies
    async with TargetStream(channel, OPENING) as stream:
        extension = await stream.extend(sequence, len(sequence), 3, without_entropies=True)
        sequence.extend(extension.choices)
        verification = await stream.verify(sequence, [], len(sequence))
    assert [*extension.choices, *verification.choices] == await greedy(channel, 4)
    assert not extension.entropies and len(verification.entropies) == 1


async def test_an_extension_ends_with_a_stop_token(channel: grpc.aio.Channel) -> None:
    expected = await greedy(channel, 6)
    sampling = SamplingParams(stop_token_ids=(expected[3],))
    async with TargetStream(channel, replace(OPENING, sampling=sampling)) as stream:
        extension = await stream.extend(TokenSequence(PROMPT), len(PROMPT), 6)
    assert list(extension.choices) == expected[: expected.index(expected[3]) + 1]


async def test_a_client_may_keep_only_a_part_of_an_extension(channel: grpc.aio.Channel) -> None:
    expected = await greedy(channel, 6)
    sequence = TokenSequence(PROMPT)
    async with TargetStream(channel, OPENING) as stream:
        await stream.extend(sequence, len(sequence), 6)
        sequence.extend(expected[:2])
        verification = await stream.verify(sequence, expected[2:4], len(sequence))
    assert list(verification.choices) == expected[2:5]
    assert stream.replays == 0


async def test_an_extension_needs_a_token_to_decode_and_one_to_start_from(channel: grpc.aio.Channel) -> None:
    for ids, max_tokens in (PROMPT, 0), ([], 3):
        async with TargetStream(channel, replace(OPENING, prompt_length=len(ids))) as stream:
            with pytest.raises(InvalidRequest, match="max_tokens"):
                await stream.extend(TokenSequence(ids), 0, max_tokens)


async def kinds(call: Any, until: str = "verification") -> list[str]:
    """Return the kinds of the messages up to the first one of the kind `until`."""
    found: list[str] = []
    while not found or found[-1] != until:
        found.append((await call.read()).WhichOneof("kind"))
    return found


async def started(channel: grpc.aio.Channel, ids: list[int], priority: int = 0) -> Any:
    """Open a stream and send its first step, without waiting for answers."""
    call = RawSequence(channel)
    opening = common_pb2.Open(prompt_length=len(ids), priority=priority)
    await call.write(target_pb2.VerifyRequest(open=opening))
    await call.write(step_of(1, 0, ids, ids))
    return call


def step_of(step_id: int, keep: int, ids: list[int], known: list[int]) -> target_pb2.VerifyRequest:
    update = common_pb2.SequenceUpdate(
        step_id=step_id, keep=keep, tokens=ids, prefix_hash=TokenSequence(known).prefix_hash(keep)
    )
    return target_pb2.VerifyRequest(step=target_pb2.VerifyStep(update=update))


async def test_an_open_that_waits_for_a_place_is_reported(
    channel: grpc.aio.Channel, engine: ClockEngine
) -> None:
    calls = [await started(channel, PROMPT) for _ in range(4)]
    for call in calls:
        assert await kinds(call) == ["verification"]
    fifth = await started(channel, PROMPT)
    assert await kinds(fifth, "queued") == ["queued"]
    assert engine.load().queued == 1
    calls[0].cancel()
    assert await kinds(fifth) == ["opened", "verification"]


async def test_a_step_that_waits_for_memory_is_reported_before_and_after(
    channel: grpc.aio.Channel, engine: ClockEngine
) -> None:
    prompts = [[20 + index] * 2000 for index in range(2)]
    first, second = [await started(channel, prompt) for prompt in prompts]
    for call in (first, second):
        *reports, last = await kinds(call)
        assert set(reports) == {"opened"} and last == "verification", "parts of the prompt"
    await second.write(step_of(2, 2000, [30] * 300, prompts[1]))
    assert await kinds(second, "queued") == ["queued"]
    assert (engine.load().queued, engine.load().preemptions) == (1, 1)
    await first.write(step_of(2, 2000, [31], prompts[0]))
    assert await kinds(first) == ["verification"]
    first.cancel()
    *reports, last = await kinds(second)
    assert set(reports) == {"opened"} and last == "verification"


async def test_a_stream_that_is_cancelled_while_it_waits_for_memory_is_freed(
    channel: grpc.aio.Channel, engine: ClockEngine
) -> None:
    prompts = [[20 + index] * 2000 for index in range(2)]
    first, second = [await started(channel, prompt) for prompt in prompts]
    for call in (first, second):
        await kinds(call)
    await second.write(step_of(2, 2000, [30] * 300, prompts[1]))
    await kinds(second, "queued")
    second.cancel()
    assert await becomes_true(lambda: engine.load().queued == 0, within_s=240.0)
    first.cancel()
    assert await becomes_true(lambda: engine.load().kv_used == 0, within_s=240.0)
