"""Three routers in front of the same services; they share only the registry's snapshots."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flyserve import AsyncClient, Mode, SpeculationParams
from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Load, Role
from flyserve.v1 import common_pb2
from flyserve.v1.drafter_pb2_grpc import DrafterStub
from flyserve.v1.target_pb2_grpc import TargetStub
from flyserve.wire.streams import info_from_wire
from orchestration.control.registry import Registry, registry_service
from services.common.channel import open_channel
from services.common.host import Host
from services.common.host_thread import HostThread
from tests.contract.fakes import VOCAB_SIZE, save_tokenizer
from tests.support.processes import ServiceProcess, service
from tests.support.streams import Streams

NUM_ROUTERS, NEW_TOKENS, TIMEOUT_S = 3, 60, 600
LANGUAGE = f"vocab_size: {VOCAB_SIZE}, response_tokens: [400, 400]"
TARGET = ("services.target", "--simulated", f"{{{LANGUAGE}, base_s: 0.05}}", "--max-sequences", "8")
DRAFTER = ("services.drafter", "--simulated", f"{{{LANGUAGE}, base_s: 0.002, agreement: 0.8}}")
PLAIN = SpeculationParams(mode=Mode.PLAIN)


class System:
    """Two targets, a drafter, a registry that can be stopped, and routers configured with the registry alone.

    Attributes:
        routers: Their addresses.
    """

    def __init__(self, stack: ExitStack, tokenizer: Path) -> None:
        self._stack = stack
        self._registry = Registry()
        self._tokenizer = str(tokenizer)
        self._address = "127.0.0.1:0"
        self.start_registry()
        self._address = self._thread.host.address
        stack.callback(self.stop_registry)
        self.services = {
            "target-0": self._start(*TARGET),
            "target-1": self._start(*TARGET),
            "drafter-0": self._start(*DRAFTER),
        }
        self.publish(*self.services)
        self.routers = [self.start_router().address for _ in range(NUM_ROUTERS)]

    def start_router(self) -> ServiceProcess:
        model = ("--model", self._tokenizer)
        return self._start("router", *model, "--registry", self._address, "--grpc-port", "0")

    def start_registry(self) -> None:
        """Start the registry at its address."""

        async def build() -> Host:
            return Host(registry_service(self._registry), self._address)

        self._thread = HostThread(build)

    def stop_registry(self) -> None:
        """Stop the registry."""
        self._thread.stop(0.0)

    def wait_for_registry_call(self) -> None:
        """Return when a router has tried to connect to the stopped registry."""
        host, _, port = self._address.rpartition(":")
        with socket.create_server((host, int(port))) as listener:
            listener.accept()[0].close()

    def publish(self, *names: str) -> None:
        """List these services in the registry."""
        roles = {name: Role(name.partition("-")[0]) for name in names}
        listed = tuple(Endpoint(roles[name], self.services[name].address, name) for name in names)

        async def publish() -> None:
            self._registry.publish(listed)

        asyncio.run_coroutine_threadsafe(publish(), self._thread.loop).result()

    def add_target(self, name: str) -> None:
        self.services[name] = self._start(*TARGET)

    def replace(self, name: str) -> None:
        """Kill a target and start another one at its address."""
        victim = self.services[name]
        victim.kill()
        self.services[name] = self._start(*TARGET, "--address", victim.address)

    async def load(self, name: str) -> Load:
        """Return the load that a service reports."""
        async with open_channel(self.services[name].address) as channel:
            stub = DrafterStub(channel) if name.startswith("drafter") else TargetStub(channel)
            _, load = info_from_wire(await stub.Info(common_pb2.InfoRequest(), timeout=TIMEOUT_S))
            return load

    async def is_idle(self) -> bool:
        """Return True if no service has an open sequence."""
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
    """Return after `more` further responses."""
    wanted = streams.num_answered + more
    while streams.num_answered < wanted:
        await asyncio.sleep(0.01)


def assert_undisturbed(streams: Streams) -> None:
    assert not streams.failures
    assert not streams.different


async def test_streams_of_a_killed_router_resume_at_another_one(system: System) -> None:
    victim = await asyncio.to_thread(system.start_router)
    streams = streams_through([victim.address, *system.routers], 12)
    await streams.record_undisturbed()
    async with streams.running():
        await answered(streams, 12)
        victim.kill()
        await answered(streams, 24)
    assert_undisturbed(streams)
    assert streams.num_resumed > 0
    while not await system.is_idle():
        await asyncio.sleep(0.01)


async def test_the_routers_send_a_prompt_to_the_same_target(system: System) -> None:
    """Each router chooses by itself, and finds the prefixes of the other routers' requests cached."""
    prompts = [[40 + index, *range(50, 113)] for index in range(12)]
    before = await reused(system)
    for router in system.routers:
        async with AsyncClient(router) as client:
            for prompt in prompts:
                await client.generate(prompt, 2, speculation=PLAIN)
    found = [after - earlier for earlier, after in zip(before, await reused(system), strict=True)]
    assert sum(found) > 0.7 * (NUM_ROUTERS - 1) * len(prompts) * 48
    assert min(found) > 0, "each target must own some prompts"


async def reused(system: System) -> list[int]:
    return [(await system.load(name)).reused_tokens for name in ("target-0", "target-1")]


async def test_routers_that_together_admit_more_than_the_targets_hold_lose_no_stream(system: System) -> None:
    streams = streams_through(system.routers, 30)
    await streams.record_undisturbed()
    async with streams.running():
        await answered(streams, 30)
    assert_undisturbed(streams)


async def test_routers_serve_while_the_registry_is_stopped_and_follow_it_after_its_restart(
    system: System,
) -> None:
    streams = streams_through(system.routers, 12, retries=0)
    await streams.record_undisturbed()
    system.add_target("target-2")
    async with streams.running():
        await asyncio.to_thread(system.stop_registry)
        await answered(streams, 12)
        await asyncio.to_thread(system.replace, "target-0")
        await answered(streams, 12)
        assert (await system.load("target-2")).prefill_tokens == 0, "the routers have not received it"
        assert (await system.load("target-0")).prefill_tokens > 0, "it was restarted at its address"
        await asyncio.to_thread(system.start_registry)
        system.publish("target-2", "drafter-0")
        while (await system.load("target-0")).sequences or (await system.load("target-1")).sequences:
            await asyncio.sleep(0.05)
        await answered(streams, 12)
    assert_undisturbed(streams)
    assert (await system.load("target-2")).prefill_tokens > 0


async def test_a_router_started_without_a_registry_serves_once_the_registry_starts(
    system: System,
) -> None:
    await asyncio.to_thread(system.stop_registry)
    starting = asyncio.create_task(asyncio.to_thread(system.start_router))
    await asyncio.to_thread(system.wait_for_registry_call)
    assert not starting.done()
    await asyncio.to_thread(system.start_registry)
    router = await starting
    async with AsyncClient(router.address, retries=0) as client:
        assert (await client.generate("prompt 0", 4, speculation=PLAIN)).tokens
