"""SIGTERM: health reports not serving, new calls are rejected, running ones finish, then the process ends."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flyserve.core.errors import NotReady
from flyserve.core.messages import Open
from flyserve.core.sequence import TokenSequence
from flyserve.v1.generation_pb2_grpc import GenerationStub
from services.common.channel import open_channel
from services.common.streams import DrafterStream, TargetStream
from tests.contract.fakes import VOCAB_SIZE, FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import PLAIN, ids, make_request
from tests.support.processes import ServiceProcess, service

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
# NOTE: gRPC cancels a call that arrives while its server closes; clients treat both as an unavailable server.
REJECTED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
PATIENCE_S = 240
"""Less than any grace period."""
PROMPT = [20, 21, 22, 23]


@asynccontextmanager
async def draining(process: ServiceProcess, channel: grpc.aio.Channel) -> AsyncIterator[None]:
    """Drain the process during the block; assert that it ends afterwards, despite open health watches."""
    health = aiter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
    assert (await anext(health)).status == SERVING
    process.process.send_signal(signal.SIGTERM)
    assert (await anext(health)).status == NOT_SERVING
    yield
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.to_thread(process.process.wait) == 0


async def test_a_router_finishes_its_responses_and_rejects_new_requests(tmp_path: Path) -> None:
    paced = f"{{vocab_size: {VOCAB_SIZE}, response_tokens: [500, 500], base_s: 0.01}}"
    with service("services.target", "--simulated", paced) as target:
        flags = ("--model", str(save_tokenizer(tmp_path)), "--target", target.address, "--grpc-port", "0")
        with service("router", *flags) as router:
            async with open_channel(router.address) as channel, open_channel(router.address) as late:
                stub = GenerationStub(channel)
                expected = ids((await stub.Generate(make_request(PLAIN, 60))).choices[0])
                stream = aiter(stub.GenerateStream(make_request(PLAIN, 60)))
                received = ids(await anext(stream))
                async with draining(router, channel):
                    with pytest.raises(grpc.aio.AioRpcError) as rejected:
                        while True:
                            await GenerationStub(late).Generate(make_request(PLAIN, 1))
                    assert rejected.value.code() in REJECTED
                    async for chunk in stream:
                        received += ids(chunk)
    assert received == expected


async def test_a_service_finishes_its_streams_and_rejects_new_ones() -> None:
    def open_stream(channel: grpc.aio.Channel) -> DrafterStream:
        return DrafterStream(channel, Open("test", prompt_length=len(PROMPT)))

    async def step(stream: DrafterStream, *more: int) -> None:
        sequence = TokenSequence([*PROMPT, *more])
        await stream.draft(sequence, len(sequence), 4)

    with service("services.lookup") as served:
        async with open_channel(served.address) as channel, open_channel(served.address) as late:
            stream = open_stream(channel)
            await step(stream)
            async with draining(served, channel):
                with pytest.raises(NotReady):
                    while True:
                        async with open_stream(late) as another:
                            await step(another)
                await step(stream, 24)
                await step(stream, 24, 25)
                async with stream:
                    pass


async def test_streams_that_exceed_the_grace_period_are_ended() -> None:
    target = FakeTarget(HashModel())
    await target.host.start()
    async with open_channel(target.host.address) as channel:
        stream = TargetStream(channel, Open("test", prompt_length=len(PROMPT)))
        await stream.verify(TokenSequence(PROMPT), [], len(PROMPT))
        await asyncio.wait_for(target.host.drain(0.2), PATIENCE_S)
        with pytest.raises(NotReady):
            await stream.verify(TokenSequence([*PROMPT, 24]), [], len(PROMPT))
    assert target.num_open == 0
