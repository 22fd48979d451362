"""Three routers before the same services, which share nothing but what the registry told them last."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fly.messages import Endpoint, Load, Role
from flyserve import AsyncClient, Mode, SpeculationParams
from orchestration.control.registry import Registry, registry_service
from protos.flyserve.v1 import common_pb2
from protos.flyserve.v1.drafter_pb2_grpc import DrafterStub
from protos.flyserve.v1.target_pb2_grpc import TargetStub
from protos.wire.streams import info_from_wire
from services.common.channel import open_channel
from services.common.host import Host
from services.common.host_thread import HostThread
from tests.contract.fakes import VOCAB_SIZE, save_tokenizer
from tests.support.processes import ServiceProcess, service
from tests.support.streams import Streams

pytestmark = pytest.mark.slow

NUM_ROUTERS, NEW_TOKENS, TIMEOUT_S = 3, 60, 120
LANGUAGE = f"vocab_size: {VOCAB_SIZE}, response_tokens: [400, 400]"
TARGET = ("services.target", "--simulated", f"{{{LANGUAGE}, base_s: 0.05}}", "--max-sequences", "8")
DRAFTER = ("services.drafter", "--simulated", f"{{{LANGUAGE}, base_s: 0.002, agreement: 0.8}}")
PLAIN = SpeculationParams(mode=Mode.PLAIN)


class System:
    """Two targets, a drafter, a registry that can be away, and routers that know only the registry.

    Attributes:
        routers: Their addresses.
    """

    def __init__(self, stack: ExitStack, tokenizer: Path) -> None:
        self._stack = stack
        self._registry = Registry()
        self._tokenizer = str(tokenizer)
        self._where = "127.0.0.1:0"
        self.come()
        self._where = self._thread.host.address
        stack.callback(self.go)
        self.services = {
            "target-0": self._start(*TARGET),
            "target-1": self._start(*TARGET),
            "drafter-0": self._start(*DRAFTER),
        }
        self.show(*self.services)
        self.routers = [self.start_router().address for _ in range(NUM_ROUTERS)]

    def start_router(self) -> ServiceProcess:
        model = ("--model", self._tokenizer)
        return self._start("router", *model, "--registry", self._where, "--grpc-port", "0")

    def come(self) -> None:
        """The registry is there, where it was."""

        async def build() -> Host:
            return Host(registry_service(self._registry), self._where)

        self._thread = HostThread(build)

    def go(self) -> None:
        """The registry is away."""
        self._thread.stop(0.0)

    def be_looked_for(self) -> None:
        """Returns when somebody has looked for the registry where it is not."""
        host, _, port = self._where.rpartition(":")
        with socket.create_server((host, int(port))) as nobody:
            nobody.accept()[0].close()

    def show(self, *names: str) -> None:
        """Has the registry list these services."""
        roles = {name: Role(name.partition("-")[0]) for name in names}
        listed = tuple(Endpoint(roles[name], self.services[name].address, name) for name in names)

        async def show() -> None:
            self._registry.show(listed)

        asyncio.run_coroutine_threadsafe(show(), self._thread.loop).result()

    def add_target(self, name: str) -> None:
        self.services[name] = self._start(*TARGET)

    def replace(self, name: str) -> None:
        """Kills a target and starts another at its address."""
        victim = self.services[name]
        victim.kill()
        self.services[name] = self._start(*TARGET, "--address", victim.address)

    async def load(self, name: str) -> Load:
        """What a service says that it carries."""
        async with open_channel(self.services[name].address) as channel:
            stub = DrafterStub(channel) if name.startswith("drafter") else TargetStub(channel)
            _, load = info_from_wire(await stub.Info(common_pb2.InfoRequest(), timeout=10))
            return load

    async def is_idle(self) -> bool:
        """Whether no service has a sequence open."""
        return not any([(await self.load(name)).sequences for name in self.services])

    def _start(self, *command: str) -> ServiceProcess:
        return self._stack.enter_context(service(*command))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with ExitStack() as stack:
        yield System(stack, save_tokenizer(tmp_path_factory.mktemp("model")))


@pytest.fixture(autouse=True)
async def _in_time() -> Any:
    async with asyncio.timeout(TIMEOUT_S):
        yield


def streams_through(routers: Sequence[str], number: int, retries: int = 3) -> Streams:
    return Streams(routers, [f"prompt {index}" for index in range(number)], NEW_TOKENS, retries)


async def answered(streams: Streams, more: int) -> None:
    """Returns when so many more responses are there."""
    wanted = streams.num_answered + more
    while streams.num_answered < wanted:
        await asyncio.sleep(0.01)


def assert_undisturbed(streams: Streams) -> None:
    assert not streams.failures
    assert not streams.different


async def test_streams_of_a_killed_router_go_on_at_another_one(system: System) -> None:
    victim = await asyncio.to_thread(system.start_router)
    streams = streams_through([victim.address, *system.routers], 12)
    await streams.ask_undisturbed()
    async with streams.running():
        await answered(streams, 12)
        victim.kill()
        await answered(streams, 24)
    assert_undisturbed(streams)
    assert streams.num_resumed > 0
    while not await system.is_idle():
        await asyncio.sleep(0.01)


async def test_the_routers_send_a_prompt_to_the_same_target(system: System) -> None:
    """Each by itself: so what one had computed, the others find cached."""
    prompts = [[40 + index, *range(50, 113)] for index in range(12)]
    before = await reused(system)
    for router in system.routers:
        async with AsyncClient(router) as client:
            for prompt in prompts:
                await client.generate(prompt, 2, speculation=PLAIN)
    found = [after - earlier for earlier, after in zip(before, await reused(system), strict=True)]
    assert sum(found) > 0.7 * (NUM_ROUTERS - 1) * len(prompts) * 48
    assert min(found) > 0, "both targets are some prompt's home"


async def reused(system: System) -> list[int]:
    return [(await system.load(name)).reused_tokens for name in ("target-0", "target-1")]


async def test_routers_that_together_admit_more_than_the_targets_hold_lose_no_stream(system: System) -> None:
    streams = streams_through(system.routers, 30)
    await streams.ask_undisturbed()
    async with streams.running():
        await answered(streams, 30)
    assert_undisturbed(streams)


async def test_routers_go_on_while_the_registry_is_away_and_follow_it_when_it_is_back(system: System) -> None:
    streams = streams_through(system.routers, 12, retries=0)
    await streams.ask_undisturbed()
    system.add_target("target-2")
    async with streams.running():
        await asyncio.to_thread(system.go)
        await answered(streams, 12)
        await asyncio.to_thread(system.replace, "target-0")
        await answered(streams, 12)
        assert (await system.load("target-2")).prefill_tokens == 0, "nobody has told the routers of it"
        assert (await system.load("target-0")).prefill_tokens > 0, "it is back where it was"
        await asyncio.to_thread(system.come)
        system.show("target-2", "drafter-0")
        while (await system.load("target-0")).sequences or (await system.load("target-1")).sequences:
            await asyncio.sleep(0.05)
        await answered(streams, 12)
    assert_undisturbed(streams)
    assert (await system.load("target-2")).prefill_tokens > 0


async def test_a_router_that_starts_while_the_registry_is_away_serves_once_it_is_back(
    system: System,
) -> None:
    await asyncio.to_thread(system.go)
    starting = asyncio.create_task(asyncio.to_thread(system.start_router))
    await asyncio.to_thread(system.be_looked_for)
    assert not starting.done()
    await asyncio.to_thread(system.come)
    router = await starting
    async with AsyncClient(router.address, retries=0) as client:
        assert (await client.generate("prompt 0", 4, speculation=PLAIN)).tokens
