"""Sub-drafter and drafter crash and restart during many exact streams; the responses do not change."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from protos.flyserve.v1 import generation_pb2 as pb
from protos.flyserve.v1.generation_pb2_grpc import GenerationStub
from services.common.channel import open_channel
from tests.contract.fakes import VOCAB_SIZE, save_tokenizer
from tests.contract.router_rig import EXACT, make_request
from tests.support.processes import ServiceProcess, service

NUM_STREAMS, NUM_TOKENS, TOKENS_AGAIN = 32, 400, 100
TIMEOUT_S = 120
LANGUAGE = f"vocab_size: {VOCAB_SIZE}, response_tokens: [2000, 2000]"
TARGET = f"{{{LANGUAGE}, base_s: 0.05}}"
DRAFTER = f"{{{LANGUAGE}, base_s: 0.002, agreement: 0.9}}"


class Services:
    """The processes of a deployment; drafter and sub-drafter can be killed and restarted at their address."""

    def __init__(self, stack: ExitStack, tokenizer: Path) -> None:
        self._stack = stack
        self.sub_drafter = self.start_sub_drafter()
        self.drafter = self.start_drafter()
        target = self._start("services.target", "--simulated", TARGET)
        endpoints = ("--target", target.address, "--drafter", self.drafter.address)
        self.router = self._start("router", "--model", str(tokenizer), *endpoints, "--grpc-port", "0")

    def start_sub_drafter(self, address: str = "127.0.0.1:0") -> ServiceProcess:
        engine = ("--engine", "suffix", "--response-cache-tokens", "100000")
        return self._start("services.sub_drafter", *engine, "--address", address)

    def start_drafter(self, address: str = "127.0.0.1:0") -> ServiceProcess:
        flags = ("--sub-drafter", self.sub_drafter.address, "--draft-ahead", "on")
        return self._start("services.drafter", "--simulated", DRAFTER, *flags, "--address", address)

    def _start(self, module: str, *flags: str) -> ServiceProcess:
        return self._stack.enter_context(service(module, *flags))


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with ExitStack() as stack:
        yield Services(stack, save_tokenizer(tmp_path))


class Stream:
    """A response as it arrives."""

    def __init__(self, stub: GenerationStub, number: int, num_tokens: int = NUM_TOKENS) -> None:
        prompt = pb.TokenIds(ids=[40 + number, 41, 42])
        self.tokens: list[int] = []
        self.statistics: pb.Statistics | None = None
        self._call = stub.GenerateStream(make_request(EXACT, num_tokens, prompt_token_ids=prompt))
        self._grew = asyncio.Condition()

    async def read(self) -> None:
        async for chunk in self._call:
            async with self._grew:
                self.tokens += [token.id for token in chunk.tokens]
                self._grew.notify_all()
            if chunk.HasField("statistics"):
                self.statistics = chunk.statistics

    async def reaches(self, num_tokens: int) -> None:
        async with self._grew:
            await self._grew.wait_for(lambda: len(self.tokens) >= num_tokens)


async def all_reach(streams: list[Stream], num_tokens: int) -> None:
    await asyncio.gather(*(stream.reaches(num_tokens) for stream in streams))


async def respond(channel: grpc.aio.Channel, num_tokens: int = NUM_TOKENS) -> list[Stream]:
    """Run all responses without faults."""
    streams = [Stream(GenerationStub(channel), number, num_tokens) for number in range(NUM_STREAMS)]
    await asyncio.gather(*(stream.read() for stream in streams))
    return streams


async def test_restarted_drafters_and_sub_drafters_change_no_exact_stream(services: Services) -> None:
    async with asyncio.timeout(TIMEOUT_S), open_channel(services.router.address) as channel:
        expected = await respond(channel)
        streams = [Stream(GenerationStub(channel), number) for number in range(NUM_STREAMS)]
        reading = asyncio.gather(*(stream.read() for stream in streams))
        await all_reach(streams, 20)
        await asyncio.to_thread(services.sub_drafter.kill)
        await all_reach(streams, 40)
        num_open = sum(len(stream.tokens) < NUM_TOKENS for stream in streams)
        await asyncio.to_thread(services.drafter.kill)
        await all_reach(streams, 60)
        await asyncio.to_thread(services.start_sub_drafter, services.sub_drafter.address)
        await asyncio.to_thread(services.start_drafter, services.drafter.address)
        await reading
        again = await respond(channel, TOKENS_AGAIN)
    assert [stream.tokens for stream in streams] == [stream.tokens for stream in expected]
    assert [stream.tokens for stream in again] == [stream.tokens[:TOKENS_AGAIN] for stream in expected]
    assert num_open > NUM_STREAMS / 2, (
        "on a busy machine the first streams may end before the last ones begin"
    )
    for stream in streams:
        assert stream.statistics is not None
        plain = stream.statistics.rounds - stream.statistics.draft_rounds
        assert 0 < plain < NUM_TOKENS - 100
    assert sum(stream.statistics.proposals_requested for stream in again if stream.statistics) > 0
    assert sum(stream.statistics.draft_rounds for stream in again if stream.statistics) > 0
