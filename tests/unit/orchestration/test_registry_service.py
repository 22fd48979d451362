from collections.abc import AsyncIterator

import grpc
import pytest

from fly.messages import Endpoint, Role
from orchestration.control.registry import Registry, registry_service
from protos.flyserve.v1 import common_pb2, registry_pb2
from protos.flyserve.v1.registry_pb2_grpc import RegistryStub
from services.common.channel import open_channel
from services.common.host import Host


@pytest.fixture
async def registry() -> Registry:
    return Registry()


@pytest.fixture
async def channel(registry: Registry) -> AsyncIterator[grpc.aio.Channel]:
    host = Host(registry_service(registry))
    await host.start()
    async with open_channel(host.address) as channel:
        yield channel
    await host.drain(0.0)


def target(address: str, generation: int = 1) -> Endpoint:
    return Endpoint(Role.TARGET, address, "target-0", generation)


def listed(snapshot: registry_pb2.Snapshot) -> dict[str, tuple[str, int, bool]]:
    return {e.replica: (e.address, e.generation, e.draining) for e in snapshot.endpoints}


async def test_list_returns_the_current_snapshot(registry: Registry, channel: grpc.aio.Channel) -> None:
    registry.publish((target("h:1"),))
    response = await RegistryStub(channel).List(registry_pb2.ListRequest())
    assert listed(response.snapshot) == {"target-0": ("h:1", 1, False)}
    assert response.snapshot.endpoints[0].role == common_pb2.ROLE_TARGET


async def test_watch_streams_the_current_and_every_later_snapshot(
    registry: Registry, channel: grpc.aio.Channel
) -> None:
    watch = RegistryStub(channel).Watch(registry_pb2.WatchRequest())
    snapshots = [(await anext(aiter(watch))).snapshot]
    for generation in (1, 2):
        registry.publish((target(f"h:{generation}", generation),))
        snapshots.append((await anext(aiter(watch))).snapshot)
    registry.publish(())
    snapshots.append((await anext(aiter(watch))).snapshot)
    assert [snapshot.generation for snapshot in snapshots] == [0, 1, 2, 3]
    assert [listed(snapshot) for snapshot in snapshots] == [
        {},
        {"target-0": ("h:1", 1, False)},
        {"target-0": ("h:2", 2, False)},
        {},
    ]


async def test_closing_ends_every_watch(registry: Registry, channel: grpc.aio.Channel) -> None:
    watch = RegistryStub(channel).Watch(registry_pb2.WatchRequest())
    await anext(aiter(watch))
    registry.close()
    assert [response async for response in watch] == []


async def test_a_cancelled_watch_is_removed(registry: Registry) -> None:
    with registry.watch() as queue:
        assert queue.qsize() == 1
    registry.publish((target("h:1"),))
    assert queue.qsize() == 1


async def test_the_same_endpoints_again_change_nothing(registry: Registry) -> None:
    assert registry.publish((target("h:1"),))
    assert not registry.publish((target("h:1"),))
    assert registry.snapshot.generation == 1


async def test_a_restarted_registry_continues_the_generations() -> None:
    registry = Registry(generation=7)
    registry.publish((target("h:1"),))
    assert registry.snapshot.generation == 8
