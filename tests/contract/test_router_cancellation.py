"""Clients that cancel, time out or do not read: all their work ends, in every tier, and soon."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from flyserve.core.messages import Load
from flyserve.v1.generation_pb2_grpc import GenerationStub
from router.config import LimitsConfig, RouterConfig
from router.server import create_host
from services.common.channel import open_channel
from tests.contract.fakes import VOCAB_SIZE, FakeDrafter, FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, ids, make_request
from tests.contract.system_rig import info_of, whole_system
from tests.support.serving import serving

LIMIT_S = 60
"""Ends a hang. An undisturbed response needs longer by itself: about `FORWARD_S` for each token."""
NUM_TOKENS, FORWARD_S = 2000, 0.05


SERVICES = {"target": "Target", "drafter": "Drafter", "sub_drafter": "Drafter"}


class System:
    """A client of every service of a system."""

    def __init__(self, channels: Mapping[str, grpc.aio.Channel]) -> None:
        self.stub = GenerationStub(channels["router"])
        self._channels = channels

    async def loads(self) -> list[Load]:
        """Return the loads of target, drafter and sub-drafter."""
        return [(await info_of(self._channels[role], service))[1] for role, service in SERVICES.items()]

    async def num_open(self) -> list[int]:
        """Return the open sequences of target, drafter and sub-drafter."""
        return [load.sequences for load in await self.loads()]

    async def becomes(self, num_open: list[int]) -> None:
        """Return when this many sequences are open."""
        async with asyncio.timeout(LIMIT_S):
            while await self.num_open() != num_open:
                await asyncio.sleep(0.002)

    async def kv_used(self) -> int:
        target, drafter, _ = await self.loads()
        return target.kv_used + drafter.kv_used


@pytest.fixture
async def system(model: Path) -> AsyncIterator[System]:
    language = {"vocab_size": VOCAB_SIZE, "response_tokens": [3000, 3000], "base_s": FORWARD_S}
    target = {"simulated": language, "max_sequences": 8, "kv_tokens": 65536}
    async with AsyncExitStack() as stack:
        system = whole_system(model, target=target, drafter={**target, "draft_ahead": "on"})
        hosts = await stack.enter_async_context(system)
        channels = {role: open_channel(host.address) for role, host in hosts.items()}
        for channel in channels.values():
            await stack.enter_async_context(channel)
        yield System(channels)


async def test_a_client_that_cancels_ends_all_its_work(system: System) -> None:
    stream = system.stub.GenerateStream(make_request(EXACT, NUM_TOKENS))
    for _ in range(2):
        await stream.read()
    await system.becomes([1, 1, 1])
    stream.cancel()
    await system.becomes([0, 0, 0])
    assert await system.kv_used() == 0


@asynccontextmanager
async def channel_with_little_room(address: str) -> AsyncIterator[grpc.aio.Channel]:
    """Channel options of a client that buffers only a few messages."""
    options = (("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0))
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield channel


async def test_a_client_that_never_reads_holds_up_nobody_and_is_given_up(tmp_path: Path) -> None:
    model = HashModel(context_length=5000)
    target, drafter = FakeTarget(model), FakeDrafter(model)
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(serving(fake.host)) for fake in (target, drafter)]
        config = RouterConfig(
            model=save_tokenizer(tmp_path),
            grpc_port=0,
            targets=(one,),
            drafters=(two,),
            max_concurrent=2,
            write_timeout_s=3.0,
        )
        router = await stack.enter_async_context(serving(await create_host(config)))
        slow = GenerationStub(await stack.enter_async_context(channel_with_little_room(router)))
        quick = GenerationStub(await stack.enter_async_context(open_channel(router)))
        unread = slow.GenerateStream(make_request(EXACT, 4000))
        for _ in range(3):
            response = await quick.Generate(make_request(PLAIN, 60))
            assert len(ids(response.choices[0])) == 60
        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(target.all_closed.wait(), drafter.all_closed.wait())
        received = 0
        with pytest.raises(grpc.aio.AioRpcError, match="received nothing for 3 s"):
            async for chunk in unread:
                received += len(ids(chunk))
        assert 0 < received < 4000


async def test_a_client_that_has_not_taken_even_the_first_piece_is_told_why_once_it_reads(
    tmp_path: Path,
) -> None:
    target, wordy = FakeTarget(HashModel()), "w" * 100_000
    async with AsyncExitStack() as stack:
        config = RouterConfig(
            model=save_tokenizer(tmp_path),
            grpc_port=0,
            targets=(await stack.enter_async_context(serving(target.host)),),
            write_timeout_s=0.2,
            limits=LimitsConfig(name_characters=len(wordy)),
        )
        router = await stack.enter_async_context(serving(await create_host(config)))
        channel = await stack.enter_async_context(channel_with_little_room(router))
        await stack.enter_async_context(asyncio.timeout(LIMIT_S))
        unread = GenerationStub(channel).GenerateStream(make_request(PLAIN, request_id=wordy))
        await target.stepped.wait()
        await target.all_closed.wait()
        with pytest.raises(grpc.aio.AioRpcError, match=r"received nothing for 0\.2 s"):
            async for _ in unread:
                pass
