"""Replica directory: handshakes, incompatible pairs, the registry, drains."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from fly.clock import SystemClock
from fly.endpoints import Endpoint, Snapshot
from fly.errors import ConfigError, NotReady
from fly.messages import Role
from protos.flyserve.v1 import registry_pb2, registry_pb2_grpc
from protos.wire.streams import snapshot_to_wire
from router.config import RouterConfig
from router.replicas.directory import ReplicaDirectory
from router.replicas.pools import any_replica
from router.server import create_host
from services.common.endpoint_sources import ListedEndpointSource, RegistryEndpointSource
from services.common.host import Host, Service
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import FLY, running
from tests.support.serving import becomes_true, serving

PATIENCE_S = 240


class FakeRegistry(registry_pb2_grpc.RegistryServicer):
    """Send each watcher the present snapshot and every later one."""

    def __init__(self, address: str = "127.0.0.1:0") -> None:
        self.host = Host(Service("flyserve.v1.Registry", self._register, self._close), address)
        self._generation = 0
        self._endpoints: tuple[Endpoint, ...] = ()
        self._changed = asyncio.Event()

    def publish(self, *endpoints: Endpoint) -> None:
        self._generation, self._endpoints = self._generation + 1, endpoints
        self._changed.set()
        self._changed = asyncio.Event()

    async def Watch(self, request: Any, context: Any) -> None:
        while True:
            changed = self._changed
            snapshot = snapshot_to_wire(Snapshot(self._generation, self._endpoints))
            await context.write(registry_pb2.WatchResponse(snapshot=snapshot))
            await changed.wait()

    async def List(self, request: Any, context: Any) -> registry_pb2.ListResponse:
        raise NotImplementedError

    def _register(self, server: grpc.aio.Server) -> None:
        registry_pb2_grpc.add_RegistryServicer_to_server(self, server)

    async def _close(self) -> None:
        return None


@asynccontextmanager
async def watching(registry: FakeRegistry) -> AsyncIterator[ReplicaDirectory]:
    fleet = ReplicaDirectory(
        RegistryEndpointSource(registry.host.address, SystemClock()), "least_load", SystemClock()
    )
    start = asyncio.create_task(fleet.start(PATIENCE_S))
    try:
        yield fleet
    finally:
        start.cancel()
        await fleet.close()


async def comes_true(condition: Callable[[], bool]) -> None:
    assert await becomes_true(condition, PATIENCE_S)


async def test_replicas_come_and_go_with_the_registrys_word() -> None:
    first, second = FakeTarget(HashModel()), FakeTarget(HashModel())
    registry = FakeRegistry()
    async with serving(first.host), serving(second.host), serving(registry.host), watching(registry) as fleet:

        def names() -> set[str]:
            return {replica.endpoint.replica for replica in fleet.targets.replicas}

        one = Endpoint(Role.TARGET, first.host.address, "target-0", 1)
        two = Endpoint(Role.TARGET, second.host.address, "target-1", 1)
        helper = Endpoint(Role.SUB_DRAFTER, "127.0.0.1:1", "sub", 1)
        registry.publish(one, helper)
        await comes_true(lambda: names() == {"target-0"})
        registry.publish(one, two)
        await comes_true(lambda: names() == {"target-0", "target-1"})
        draining = Endpoint(Role.TARGET, first.host.address, "target-0", 1, draining=True)
        registry.publish(draining, two)
        await comes_true(lambda: names() == {"target-1"})


async def test_the_last_word_holds_while_the_registry_is_away() -> None:
    target, later = FakeTarget(HashModel()), FakeTarget(HashModel())
    registry = FakeRegistry()
    async with serving(target.host), serving(later.host):
        await registry.host.start()
        async with watching(registry) as fleet:
            registry.publish(Endpoint(Role.TARGET, target.host.address, "t"))
            await comes_true(lambda: len(fleet.targets.replicas) == 1)
            await registry.host.drain(0.0)
            assert len(fleet.targets.ready(any_replica)) == 1
            again = FakeRegistry(registry.host.address)
            again.publish(Endpoint(Role.TARGET, later.host.address, "later"))
            async with serving(again.host):
                await comes_true(lambda: [r.endpoint.replica for r in fleet.targets.replicas] == ["later"])


async def test_a_draining_replica_finishes_what_it_has() -> None:
    target, registry = FakeTarget(HashModel()), FakeRegistry()
    async with serving(target.host), serving(registry.host), watching(registry) as fleet:
        registry.publish(Endpoint(Role.TARGET, target.host.address, "t"))
        await comes_true(lambda: len(fleet.targets.replicas) == 1)
        (replica,) = fleet.targets.replicas
        with replica.lease(lambda: None):
            registry.publish()
            await comes_true(lambda: not fleet.targets.replicas)
            assert replica.channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN
        await comes_true(lambda: replica.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN)


async def test_a_static_pair_that_does_not_fit_fails_the_start(tmp_path: Path) -> None:
    target = FakeTarget(HashModel(), model_id="big", token_map_hash="aaa")
    drafter = FakeDrafter(HashModel(), model_id="small", token_map_hash="bbb")
    model = save_tokenizer(tmp_path)
    async with serving(target.host) as one, serving(drafter.host) as two:
        config = RouterConfig(model=model, grpc_port=0, targets=(one,), drafters=(two,))
        with pytest.raises(ConfigError) as caught:
            await create_host(config)
    assert all(part in str(caught.value) for part in ("big", "small", one, two, "aaa", "bbb"))


async def test_targets_of_two_engines_fail_the_start(tmp_path: Path) -> None:
    ours, theirs = FakeTarget(HashModel()), FakeTarget(HashModel(), engine="vllm")
    async with serving(ours.host) as one, serving(theirs.host) as two:
        config = RouterConfig(model=save_tokenizer(tmp_path), grpc_port=0, targets=(one, two))
        with pytest.raises(ConfigError, match="all targets must run on the same engine") as caught:
            await create_host(config)
    assert all(part in str(caught.value) for part in (one, two, "the builtin engine", "vllm"))


async def test_a_later_target_on_another_engine_is_left_out_until_the_others_are_gone() -> None:
    ours, theirs = FakeTarget(HashModel()), FakeTarget(HashModel(), engine="vllm")
    registry = FakeRegistry()
    async with serving(ours.host), serving(theirs.host), serving(registry.host), watching(registry) as fleet:
        first = Endpoint(Role.TARGET, ours.host.address, "t0")
        second = Endpoint(Role.TARGET, theirs.host.address, "t1")
        registry.publish(first)
        await comes_true(lambda: len(fleet.targets.replicas) == 1)
        registry.publish(first, second)
        await comes_true(lambda: "all targets must run on the same engine" in fleet._faults.get(second, ""))
        registry.publish(second)
        await comes_true(lambda: [r.info.engine for r in fleet.targets.replicas] == ["vllm"])


async def test_a_later_drafter_that_does_not_fit_is_left_out_and_the_client_is_told(tmp_path: Path) -> None:
    target, drafter = FakeTarget(HashModel()), FakeDrafter(HashModel())
    async with running(save_tokenizer(tmp_path), [target], [drafter]) as rig:
        address = drafter.host.address
        assert not (await rig.generate(FLY, 5)).warnings
        await drafter.host.drain(0.0)
        late = FakeDrafter(HashModel(), address=address, token_map_hash="other")
        async with serving(late.host):
            async with asyncio.timeout(PATIENCE_S):
                while "their token maps differ" not in "".join((await rig.generate(FLY, 5)).warnings):
                    pass
        assert late.num_opened == 0


async def test_a_tokenizer_that_does_not_fit_the_target_fails_the_start(tmp_path: Path) -> None:
    model = save_tokenizer(tmp_path)
    small = FakeTarget(HashModel(), vocab_size=100)
    other = FakeTarget(HashModel(), architecture="LlamaForCausalLM")
    for target in (small, other):
        async with serving(target.host) as address:
            with pytest.raises(ConfigError, match="model: "):
                await create_host(RouterConfig(model=model, targets=(address,)))


async def test_without_a_target_the_start_fails_and_says_who_did_not_answer(tmp_path: Path) -> None:
    gone = FakeTarget(HashModel())
    async with serving(gone.host) as address:
        pass
    config = RouterConfig(model=save_tokenizer(tmp_path), targets=(address,), start_timeout_s=0.5)
    with pytest.raises(NotReady, match=address):
        await create_host(config)


async def test_without_a_target_in_the_registry_the_start_fails_and_names_the_registry(
    tmp_path: Path,
) -> None:
    gone = FakeTarget(HashModel())
    async with serving(gone.host) as address:
        pass
    config = RouterConfig(model=save_tokenizer(tmp_path), registry=address, start_timeout_s=0.5)
    with pytest.raises(
        NotReady, match=f"no endpoint is registered.*; the registry is {address}: flyserve status"
    ):
        await create_host(config)


async def test_a_closed_fleet_leaves_no_task_and_no_channel_behind() -> None:
    target = FakeTarget(HashModel())
    async with serving(target.host) as address:
        fleet = ReplicaDirectory(
            ListedEndpointSource({Role.TARGET: [address]}, SystemClock()), "least_load", SystemClock()
        )
        await fleet.start(PATIENCE_S)
        (replica,) = fleet.targets.replicas
        await fleet.close()
        assert replica.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        left = [task for task in asyncio.all_tasks() if "ReplicaDirectory" in task.get_coro().__qualname__]
        assert not left
