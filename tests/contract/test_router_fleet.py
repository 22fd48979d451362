"""Replica directory: handshakes, incompatible pairs, the registry, drains."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from flyserve.core.clock import SystemClock
from flyserve.core.endpoints import Endpoint
from flyserve.core.errors import ConfigError, NotReady
from flyserve.core.messages import Role
from flyserve.v1.common_pb2 import InfoResponse
from orchestration.control.registry import Registry, registry_service
from router.config import RouterConfig
from router.replicas.directory import ReplicaDirectory
from router.replicas.pools import any_replica
from router.server import create_host
from services.common import endpoint_sources
from services.common.endpoint_sources import ListedEndpointSource, RegistryEndpointSource
from services.common.host import Host
from tests.contract.fakes import FakeDrafter, FakeTarget, HashModel, save_tokenizer
from tests.contract.router_rig import FLY, running
from tests.support.serving import becomes_true, serving

PATIENCE_S = 240


@dataclass(frozen=True)
class Watched:
    """A directory that follows a registry, and both hosts' ends."""

    registry: Registry
    host: Host
    fleet: ReplicaDirectory
    start: asyncio.Task[None]

    def publish(self, *endpoints: Endpoint) -> None:
        self.registry.publish(endpoints)

    @property
    def names(self) -> list[str]:
        return [replica.endpoint.replica for replica in self.fleet.targets.replicas]


@asynccontextmanager
async def watching() -> AsyncIterator[Watched]:
    registry = Registry()
    async with serving(host := Host(registry_service(registry))) as address:
        source = RegistryEndpointSource(address, SystemClock())
        fleet = ReplicaDirectory(source, "least_load", SystemClock())
        start = asyncio.create_task(fleet.start(PATIENCE_S))
        try:
            yield Watched(registry, host, fleet, start)
        finally:
            start.cancel()
            await fleet.close()


async def comes_true(condition: Callable[[], bool]) -> None:
    assert await becomes_true(condition, PATIENCE_S)


async def test_replicas_come_and_go_with_the_registrys_word() -> None:
    first, second = FakeTarget(HashModel()), FakeTarget(HashModel())
    async with serving(first.host), serving(second.host), watching() as watched:
        one = Endpoint(Role.TARGET, first.host.address, "target-0", 1)
        two = Endpoint(Role.TARGET, second.host.address, "target-1", 1)
        helper = Endpoint(Role.SUB_DRAFTER, "127.0.0.1:1", "sub", 1)
        watched.publish(one, helper)
        await comes_true(lambda: watched.names == ["target-0"])
        watched.publish(one, two)
        await comes_true(lambda: set(watched.names) == {"target-0", "target-1"})
        watched.publish(replace(one, draining=True), two)
        await comes_true(lambda: watched.names == ["target-1"])


class Odd(FakeTarget):
    """A target of a version whose message is empty here, until it is replaced."""

    is_odd = True

    async def Info(self, request: Any, context: Any) -> Any:
        return InfoResponse() if self.is_odd else await super().Info(request, context)


async def test_a_replica_with_an_odd_answer_is_tried_again_and_delays_no_start() -> None:
    odd, right = Odd(HashModel()), FakeTarget(HashModel())
    async with serving(odd.host), serving(right.host), watching() as watched:
        watched.publish(
            Endpoint(Role.TARGET, odd.host.address, "odd"), Endpoint(Role.TARGET, right.host.address, "right")
        )
        await asyncio.wait_for(watched.start, PATIENCE_S)
        assert watched.names == ["right"]
        odd.is_odd = False
        await comes_true(lambda: set(watched.names) == {"odd", "right"})


async def test_a_word_that_cannot_be_read_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    read, unread = endpoint_sources.snapshot_from_wire, [None]

    def odd_at_first(wire: Any) -> Any:
        return read(unread.pop() if unread else wire)

    monkeypatch.setattr(endpoint_sources, "snapshot_from_wire", odd_at_first)
    target = FakeTarget(HashModel())
    async with serving(target.host), watching() as watched:
        watched.publish(Endpoint(Role.TARGET, target.host.address, "target-0", 1))
        await comes_true(lambda: watched.names == ["target-0"])
    assert not unread


async def test_the_last_word_holds_while_the_registry_is_away() -> None:
    target, later, again = FakeTarget(HashModel()), FakeTarget(HashModel()), Registry()
    async with serving(target.host), serving(later.host), watching() as watched:
        watched.publish(Endpoint(Role.TARGET, target.host.address, "t"))
        await comes_true(lambda: watched.names == ["t"])
        await watched.host.drain(0.0)
        assert len(watched.fleet.targets.ready(any_replica)) == 1
        again.publish((Endpoint(Role.TARGET, later.host.address, "later"),))
        async with serving(Host(registry_service(again), watched.host.address)):
            await comes_true(lambda: watched.names == ["later"])


async def test_a_draining_replica_finishes_what_it_has() -> None:
    target = FakeTarget(HashModel())
    async with serving(target.host), watching() as watched:
        watched.publish(Endpoint(Role.TARGET, target.host.address, "t"))
        await comes_true(lambda: watched.names == ["t"])
        (replica,) = watched.fleet.targets.replicas
        with replica.lease(lambda: None):
            watched.publish()
            await comes_true(lambda: not watched.names)
            assert replica.channel.get_state() is not grpc.ChannelConnectivity.SHUTDOWN
        await comes_true(lambda: replica.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN)


async def test_a_replica_that_leaves_may_refuse_a_probe() -> None:
    target = FakeTarget(HashModel())
    async with watching() as watched, AsyncExitStack() as open_sequence:
        async with serving(target.host):
            watched.publish(Endpoint(Role.TARGET, target.host.address, "t"))
            await comes_true(lambda: watched.names == ["t"])
            (replica,) = watched.fleet.targets.replicas
            open_sequence.enter_context(replica.lease(lambda: None))
        assert await replica.is_healthy(is_leaving=True) and not await replica.is_healthy()


async def test_a_later_target_on_another_engine_is_left_out_until_the_others_are_gone() -> None:
    ours, theirs = FakeTarget(HashModel()), FakeTarget(HashModel(), engine="vllm")
    async with serving(ours.host), serving(theirs.host), watching() as watched:
        first = Endpoint(Role.TARGET, ours.host.address, "t0")
        second = Endpoint(Role.TARGET, theirs.host.address, "t1")
        watched.publish(first)
        await comes_true(lambda: watched.names == ["t0"])
        watched.publish(first, second)
        faults, reason = watched.fleet._faults, "all targets must run on the same engine"
        await comes_true(lambda: reason in faults.get(second, ""))
        watched.publish(second)
        await comes_true(lambda: [r.info.engine for r in watched.fleet.targets.replicas] == ["vllm"])


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


async def test_a_closed_fleet_leaves_no_task_and_no_channel_behind() -> None:
    async with serving(FakeTarget(HashModel()).host) as address:
        source = ListedEndpointSource({Role.TARGET: [address]}, SystemClock())
        fleet = ReplicaDirectory(source, "least_load", SystemClock())
        await fleet.start(PATIENCE_S)
        (replica,) = fleet.targets.replicas
        await fleet.close()
        assert replica.channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN
        left = [task for task in asyncio.all_tasks() if "ReplicaDirectory" in task.get_coro().__qualname__]
        assert not left


async def test_the_longest_context_is_one_that_counts_the_targets_tokens() -> None:
    target, mapped = FakeTarget(HashModel()), FakeDrafter(HashModel(context_length=0), vocabulary_way="text")
    async with serving(target.host), serving(mapped.host), watching() as watched:
        watched.publish(
            Endpoint(Role.TARGET, target.host.address, "t"), Endpoint(Role.DRAFTER, mapped.host.address, "d")
        )
        await comes_true(lambda: len(watched.fleet.drafters.replicas) == len(watched.names) == 1)
        assert watched.fleet.longest_context() == target.model.context_length


MISFITS: dict[str, tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]], Sequence[str]]] = {
    "a drafter with another token map": (
        [{"model_id": "big", "token_map_hash": "aaa"}],
        [{"model_id": "small", "token_map_hash": "bbb"}],
        ("big", "small", "aaa", "bbb"),
    ),
    "targets of two engines": (
        [{}, {"engine": "vllm"}],
        [],
        ("all targets must run on the same engine", "the builtin engine", "vllm"),
    ),
    "a smaller vocabulary": ([{"vocab_size": 100}], [], ["model: "]),
    "another architecture": ([{"architecture": "LlamaForCausalLM"}], [], ["model: "]),
}


@pytest.mark.parametrize(("targets", "drafters", "parts"), MISFITS.values(), ids=MISFITS.keys())
async def test_services_that_do_not_fit_fail_the_start(
    model: Path,
    targets: Sequence[dict[str, Any]],
    drafters: Sequence[dict[str, Any]],
    parts: Sequence[str],
) -> None:
    fakes = [FakeTarget(HashModel(), **info) for info in targets]
    helpers = [FakeDrafter(HashModel(), **info) for info in drafters]
    with pytest.raises(ConfigError) as caught:
        async with running(model, fakes, helpers):
            pass
    services = [*fakes, *helpers]
    addresses = [each.host.address for each in services] if len(services) > 1 else []
    assert all(part in str(caught.value) for part in (*parts, *addresses))


async def test_without_a_target_the_start_fails_and_names_whom_it_asked(model: Path) -> None:
    async with serving(FakeTarget(HashModel()).host) as address:
        pass
    for asked, reason in (
        ({"targets": (address,)}, address),
        ({"registry": address}, f"no endpoint is registered.*; the registry is {address}: flyserve status"),
    ):
        config = RouterConfig(model=model, start_timeout_s=0.5, **asked)
        with pytest.raises(NotReady, match=reason):
            await create_host(config)
