"""Many sequences in one stream: each has its own end, and none harms the others."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2

from flyserve.core.errors import InvalidRequest, NotReady
from flyserve.core.messages import Open, Opened
from flyserve.core.sequence import TokenSequence
from flyserve.v1 import common_pb2, target_pb2
from flyserve.wire.batches import VERIFY
from flyserve.wire.status import CODES
from flyserve.wire.streams import verify_response_to_wire
from services.common.shared_stream import server
from services.common.shared_stream.client import finish_sequences, open_sequence
from services.common.shared_stream.mailbox import MOST_MESSAGES
from services.common.shared_stream.server import Send
from services.common.streams import TargetStream
from services.engine.simulation.clock_engine import ClockEngine
from tests.contract.engine_rig import PROMPT
from tests.contract.fakes import FakeTarget, HashModel, held
from tests.contract.router_rig import EXACT, PLAIN, ids, running
from tests.support.raw_streams import RawStream
from tests.support.serving import becomes_true, connected

TIMEOUT_S = 240.0
OPENING = Open("test", prompt_length=len(PROMPT))


class CountedTarget(FakeTarget):
    """A target that counts its streams, and breaks those that are open when `breaks` is set."""

    def __init__(self, model: HashModel, **info: Any) -> None:
        super().__init__(model, **info)
        self.num_streams = 0
        self.breaks = asyncio.Event()

    async def VerifyBatches(self, request_iterator: Any, context: Any) -> None:
        self.num_streams += 1
        served = asyncio.ensure_future(super().VerifyBatches(request_iterator, context))
        broken = asyncio.ensure_future(self.breaks.wait())
        try:
            await asyncio.wait((served, broken), return_when=asyncio.FIRST_COMPLETED)
            if self.breaks.is_set():
                self.breaks.clear()
                raise RuntimeError("the stream breaks")
        finally:
            served.cancel()
            broken.cancel()
            await asyncio.wait((served, broken))


async def verified(stream: TargetStream, *more: int) -> tuple[int, ...]:
    sequence = TokenSequence([*PROMPT, *more])
    async with asyncio.timeout(TIMEOUT_S):
        return (await stream.verify(sequence, [], len(PROMPT))).choices


def opening(**fields: Any) -> target_pb2.VerifyRequest:
    """Return a first message with a step."""
    update = common_pb2.SequenceUpdate(step_id=1, tokens=PROMPT, decided=4)
    request = target_pb2.VerifyRequest(open=common_pb2.Open(prompt_length=4, **fields))
    request.step.update.CopyFrom(update)
    return request


async def end_of(stream: RawStream, number: int) -> grpc.StatusCode:
    """Return the code with which a sequence ends; skip all other messages."""
    async with asyncio.timeout(TIMEOUT_S):
        while (response := await stream.receive()) is not grpc.aio.EOF:
            if response.sequence == number and response.HasField("end"):
                return CODES[status_pb2.Status.FromString(response.end.status).code]
    raise AssertionError("the stream ended")


async def test_errors_and_cancellations_of_sequences_leave_the_others_alone(
    channel: grpc.aio.Channel, engine: ClockEngine
) -> None:
    streams = [TargetStream(channel, replace(OPENING, cache_salt=str(number))) for number in range(4)]
    expected = await verified(streams[0])
    assert await asyncio.gather(*map(verified, streams[1:])) == [expected] * 3
    with pytest.raises(InvalidRequest, match=r"update\.tokens"):
        await verified(streams[1], 1 << 20)
    streams[2].cancel()
    with pytest.raises(NotReady, match="cancelled"):
        await verified(streams[2], *expected)
    assert await becomes_true(lambda: engine.load().sequences == 2, TIMEOUT_S)
    again = await asyncio.gather(*(verified(each, *expected) for each in (streams[0], streams[3])))
    assert again[0] == again[1]
    for stream in streams:
        stream.cancel()
    assert await becomes_true(lambda: engine.load().kv_used == 0, TIMEOUT_S)


async def test_long_steps_of_many_sequences_are_sent_apart_and_too_long_ones_refused() -> None:
    """All of them together have more bytes than a message may have."""
    target = CountedTarget(HashModel(context_length=200_000))
    prompt = TokenSequence([301] * 150_000)
    async with connected(target.host) as channel:
        streams = [TargetStream(channel, Open(str(each), prompt_length=len(prompt))) for each in range(16)]
        long = TargetStream(channel, replace(OPENING, grammar="x" * (5 << 20)))
        with pytest.raises(InvalidRequest, match=r"message has 52.* bytes, at most 41"):
            await verified(long)
        async with asyncio.timeout(TIMEOUT_S):
            answers = await asyncio.gather(*(each.verify(prompt, [], len(prompt)) for each in streams))
        assert len({answer.choices for answer in answers}) == 1
        assert target.num_streams == 1
        assert sum(stream.num_bytes for stream in streams) > 4 << 20


async def test_a_stream_that_breaks_under_sixteen_responses_loses_nothing(model: Path) -> None:
    target = CountedTarget(HashModel())
    async with running(model, [target]) as rig:
        expected = ids(await rig.generate(PLAIN))
        gate = held(target, first=target.num_steps + 32)
        responses = [asyncio.create_task(rig.generate(PLAIN)) for _ in range(16)]
        assert await becomes_true(lambda: target.num_open == 16, TIMEOUT_S)
        assert target.num_streams == 1
        target.breaks.set()
        assert await becomes_true(lambda: not target.breaks.is_set(), TIMEOUT_S)
        gate.set()
        for response in await asyncio.wait_for(asyncio.gather(*responses), TIMEOUT_S):
            assert ids(response) == expected and response.statistics.replays == 1
    assert target.num_streams == 2


@pytest.mark.parametrize("mode", [EXACT, PLAIN])
async def test_all_responses_of_a_router_share_one_stream(model: Path, mode: int) -> None:
    target = CountedTarget(HashModel())
    async with running(model, [target]) as rig:
        await asyncio.gather(*(rig.generate(mode, 20) for _ in range(8)))
    assert (target.num_streams, target.num_opened) == (1, 8)


async def test_hostile_messages_end_only_their_sequence(
    channel: grpc.aio.Channel, engine: ClockEngine
) -> None:
    stream, close = RawStream(channel), target_pb2.VerifyRequest(close=common_pb2.Close())
    without_open, twice = target_pb2.VerifyRequest(close=close.close), opening()
    cancel = target_pb2.VerifyRequest(cancel=common_pb2.Cancel())
    await stream.send((1, opening()))
    await stream.send((9, cancel), (2, without_open), (3, twice), (3, twice))
    for number in (2, 3):
        assert await end_of(stream, number) is grpc.StatusCode.INVALID_ARGUMENT
    await stream.send((4, opening()), *((4, close) for _ in range(40)))
    assert await end_of(stream, 4) in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT)
    await stream.send((4, without_open))
    assert await end_of(stream, 4) is grpc.StatusCode.INVALID_ARGUMENT
    await stream.send((4, opening()), (4, close))
    assert await end_of(stream, 4) is grpc.StatusCode.OK, "a number may be used again"
    assert engine.load().sequences == 1
    await stream.send((1, close))
    assert await end_of(stream, 1) is grpc.StatusCode.OK, "it has not noticed anything"
    await stream.send(*((number, without_open) for number in range(MOST_MESSAGES + 1)))
    async with asyncio.timeout(TIMEOUT_S):
        assert await stream.call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert engine.load().sequences == 0


async def test_one_client_may_open_as_many_sequences_as_allowed(
    channel: grpc.aio.Channel, engine: ClockEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MOST_SEQUENCES", 3)
    first, other = RawStream(channel), RawStream(channel)
    await first.send(*((number, opening()) for number in range(4)))
    assert await end_of(first, 3) is grpc.StatusCode.RESOURCE_EXHAUSTED
    await other.send((3, opening()))
    async with asyncio.timeout(TIMEOUT_S):
        assert (await other.receive()).HasField("verification"), "another client has places of its own"
    assert engine.load().sequences == 4


async def test_a_server_that_answers_what_nobody_asked_loses_that_sequence_only() -> None:
    class Talkative(FakeTarget):
        async def serve(self, requests: AsyncIterator[Any], send: Send) -> None:
            request = await anext(requests)
            if request.open.request_id == "talk":
                for _ in range(100):
                    await send(verify_response_to_wire(Opened()))
                await anext(requests)
            else:
                await send(verify_response_to_wire(Opened()))
                await anext(requests)

    async with connected(Talkative(HashModel()).host) as channel:
        quiet, other = open_sequence(channel, VERIFY), open_sequence(channel, VERIFY)
        for call, name in ((other, "talk"), (quiet, "quiet")):
            call.send(target_pb2.VerifyRequest(open=common_pb2.Open(request_id=name)))
        async with asyncio.timeout(TIMEOUT_S):
            assert (await quiet.receive()).HasField("opened")
            with pytest.raises(NotReady, match="answers to no steps"):
                while True:
                    await other.receive()
        assert not quiet.inbox.is_ended


async def test_a_finished_stream_ends_with_its_last_sequence_and_another_one_follows() -> None:
    target = CountedTarget(HashModel())
    async with connected(target.host) as channel:
        async with TargetStream(channel, OPENING) as first:
            expected = await verified(first)
            finish_sequences(channel)
            async with TargetStream(channel, OPENING) as second:
                assert await verified(second) == expected
            assert await verified(first, *expected)
            assert target.num_streams == 2 and target.num_open == 1
        finish_sequences(channel)
        await asyncio.wait_for(target.host.drain(TIMEOUT_S), TIMEOUT_S / 2)
