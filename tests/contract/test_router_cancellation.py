"""Clients that cancel, time out or do not read: all their work ends, in every tier, and soon."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from fly.clock import SystemClock
from fly.messages import Role
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.drafter_pb2_grpc import DrafterStub
from protos.flyserve.v1.generation_pb2_grpc import GenerationStub
from router.config import LimitsConfig, RouterConfig
from router.server import create_host
from services.common.channel import open_channel
from services.common.endpoint_sources import ListedEndpointSource
from services.drafter.ahead import DraftingLimits
from services.drafter.servicer import host_engine as host_drafter
from services.drafter.sub_drafters import SubDrafters
from services.engine.simulation.clock_engine import ClockEngine
from services.engine.simulation.runner import SimulatedConfig, SimulatedRunner
from services.sub_drafter.config import SubDrafterConfig
from services.sub_drafter.servicer import create_host as create_sub_drafter
from services.target.servicer import host_engine as host_target
from tests.contract.fakes import VOCAB_SIZE, FakeDrafter, FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, ids, make_request
from tests.support.serving import serving

NOTICED_S = 0.1
TRIES = 5
DEADLINE_S = 1.5
"""In which even a busy machine opens every stream of a request."""


class System:
    """Every tier with a simulated engine, behind a router.

    Attributes:
        stub: Of a client of the router.
    """

    def __init__(
        self, router: grpc.aio.Channel, sub_drafter: grpc.aio.Channel, *engines: ClockEngine
    ) -> None:
        self.stub = GenerationStub(router)
        self._sub_drafter = DrafterStub(sub_drafter)
        self._engines = engines

    async def num_open(self) -> list[int]:
        """Return the open sequences of target, drafter and sub-drafter."""
        info = await self._sub_drafter.Info(common_pb2.InfoRequest())
        return [*(engine.load().sequences for engine in self._engines), info.load.sequences]

    async def becomes(self, num_open: list[int]) -> float:
        """Return the seconds until this many sequences are open."""
        started = time.monotonic()
        async with asyncio.timeout(5):
            while await self.num_open() != num_open:
                await asyncio.sleep(0.002)
        return time.monotonic() - started

    def kv_used(self) -> int:
        return sum(engine.load().kv_used for engine in self._engines)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    language = SimulatedConfig(vocab_size=VOCAB_SIZE, response_tokens=(3000, 3000), base_s=0.01)
    async with AsyncExitStack() as stack:
        sub_drafter = await stack.enter_async_context(
            serving(await create_sub_drafter(SubDrafterConfig(engine="suffix")))
        )
        target, drafter = [
            ClockEngine(SimulatedRunner(language, role, 8, 65536), SystemClock())
            for role in (Role.TARGET, Role.DRAFTER)
        ]
        helpers = SubDrafters(ListedEndpointSource({Role.SUB_DRAFTER: [sub_drafter]}, SystemClock()))
        for part in (target, drafter, helpers):
            await part.start()
        hosts = [host_target(target), host_drafter(drafter, helpers, DraftingLimits(ahead_sequences=8))]
        one, two = [await stack.enter_async_context(serving(host)) for host in hosts]
        model = save_tokenizer(tmp_path)
        router = await create_host(RouterConfig(model=model, grpc_port=0, targets=(one,), drafters=(two,)))
        address = await stack.enter_async_context(serving(router))
        channels = [await stack.enter_async_context(open_channel(each)) for each in (address, sub_drafter)]
        yield System(*channels, target, drafter)


async def is_noticed(seconds_taken: Callable[[], Awaitable[float]]) -> bool:
    """Return True if one of a few tries ends in time; a busy machine may delay a single one."""
    for _ in range(TRIES):
        if await seconds_taken() < NOTICED_S:
            return True
    return False


async def test_a_client_that_cancels_ends_all_its_work(system: System) -> None:
    async def seconds_taken() -> float:
        stream = system.stub.GenerateStream(make_request(EXACT, 2000))
        for _ in range(2):
            await stream.read()
        await system.becomes([1, 1, 1])
        stream.cancel()
        return await system.becomes([0, 0, 0])

    assert await is_noticed(seconds_taken)
    assert system.kv_used() == 0


async def test_a_deadline_ends_all_work(system: System) -> None:
    async def seconds_taken() -> float:
        stream = system.stub.GenerateStream(make_request(EXACT, 2000), timeout=DEADLINE_S)
        await system.becomes([1, 1, 1])
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
            async for _ in stream:
                pass
        return await system.becomes([0, 0, 0])

    assert await is_noticed(seconds_taken)
    assert system.kv_used() == 0


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
        assert target.num_open == 1, "it has not come far, and waits for its reader"
        async with asyncio.timeout(20):
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
        await stack.enter_async_context(asyncio.timeout(20))
        unread = GenerationStub(channel).GenerateStream(make_request(PLAIN, request_id=wordy))
        await target.stepped.wait()
        await target.all_closed.wait()
        with pytest.raises(grpc.aio.AioRpcError, match=r"received nothing for 0\.2 s"):
            async for _ in unread:
                pass
