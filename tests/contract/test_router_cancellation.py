"""Clients that cancel, time out or do not read: all their work ends, in every tier, and soon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
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
from services.lookup.config import SuffixConfig
from services.lookup.servicer import create_host as create_sub_drafter
from services.target.servicer import host_engine as host_target
from tests.contract.fakes import VOCAB_SIZE, FakeDrafter, FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import EXACT, PLAIN, ids, make_request
from tests.support.serving import serving

LIMIT_S = 60
"""Ends a hang. An undisturbed response needs longer by itself: about `FORWARD_S` for each token."""
NUM_TOKENS, FORWARD_S = 2000, 0.05


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

    async def becomes(self, num_open: list[int]) -> None:
        """Return when this many sequences are open."""
        async with asyncio.timeout(LIMIT_S):
            while await self.num_open() != num_open:
                await asyncio.sleep(0.002)

    def kv_used(self) -> int:
        return sum(engine.load().kv_used for engine in self._engines)


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    language = SimulatedConfig(vocab_size=VOCAB_SIZE, response_tokens=(3000, 3000), base_s=FORWARD_S)
    async with AsyncExitStack() as stack:
        sub_drafter = await stack.enter_async_context(serving(await create_sub_drafter(SuffixConfig())))
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


async def test_a_client_that_cancels_ends_all_its_work(system: System) -> None:
    stream = system.stub.GenerateStream(make_request(EXACT, NUM_TOKENS))
    for _ in range(2):
        await stream.read()
    await system.becomes([1, 1, 1])
    stream.cancel()
    await system.becomes([0, 0, 0])
    assert system.kv_used() == 0


async def test_a_deadline_ends_all_work(system: System) -> None:
    """A busy machine may need a longer deadline until every stream is open."""
    for deadline_s in (1.5, 5.0, 20.0, 50.0):
        stream = system.stub.GenerateStream(make_request(EXACT, NUM_TOKENS), timeout=deadline_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.9 * deadline_s):
                await system.becomes([1, 1, 1])
        has_begun = await system.num_open() == [1, 1, 1]
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
            async for _ in stream:
                pass
        await system.becomes([0, 0, 0])
        if has_begun:
            break
    assert has_begun
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
