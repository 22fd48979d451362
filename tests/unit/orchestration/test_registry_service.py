import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from flyserve.core.endpoints import Endpoint
from flyserve.core.messages import Role
from flyserve.v1 import common_pb2, registry_pb2
from flyserve.v1.registry_pb2_grpc import RegistryStub
from orchestration.control.registry import Registry, registry_service
from router.admission.load_reporter import LoadReporter
from services.common.channel import open_channel
from services.common.host import Host
from tests.support.clock import VirtualClock


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


async def test_watch_streams_the_current_snapshot_and_the_latest_after_each_change(
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
    assert snapshots[1].endpoints[0].role == common_pb2.ROLE_TARGET
    assert [listed(snapshot) for snapshot in snapshots] == [
        {},
        {"target-0": ("h:1", 1, False)},
        {"target-0": ("h:2", 2, False)},
        {},
    ]


async def test_closing_ends_every_watch(registry: Registry, channel: grpc.aio.Channel) -> None:
    watch = RegistryStub(channel).Watch(registry_pb2.WatchRequest())
    await anext(aiter(watch))
    await registry.close()
    assert [response async for response in watch] == []


async def test_a_slow_watcher_gets_the_latest_snapshot_only(registry: Registry) -> None:
    watch = registry.watch()
    await anext(watch)
    for port in range(1000):
        registry.publish((target(f"h:{port}"),))
    assert (await anext(watch)).endpoints == (target("h:999"),)
    registry.publish(())
    assert (await anext(watch)).generation == 1001


async def test_reports_of_routers_are_added_up_until_they_are_out_of_date() -> None:
    clock = VirtualClock()
    registry = Registry(clock=clock)
    registry.report("one", 5)
    clock.advance(3.0)
    registry.report("two", 7)
    registry.report("two", 8, {"drafter-1": "it never agrees"})
    assert registry.waiting() == 13 and registry.alarms() == {"drafter-1": "it never agrees"}
    clock.advance(3.0)
    assert registry.waiting() == 8
    clock.advance(3.0)
    assert registry.waiting() == 0 and not registry.alarms()


async def test_a_router_reports_its_queue_and_its_alarms_until_they_end(registry: Registry) -> None:
    host = Host(registry_service(registry))
    await host.start()
    clock, queue, alarms = VirtualClock(), [4], {"drafter-0": "it never agrees"}
    async with LoadReporter(host.address, clock, None, lambda: queue[0], lambda: alarms).running():
        await advance_until(clock, lambda: registry.waiting() == 4)
        queue[0] = 0
        await advance_until(clock, lambda: registry.waiting() == 0)
        assert registry.alarms() == alarms
        alarms.clear()
        await advance_until(clock, lambda: not registry.alarms())
    await host.drain(0.0)


async def advance_until(clock: VirtualClock, is_true: Callable[[], bool]) -> None:
    """Move the clock each time that somebody sleeps on it, until the condition is true."""
    async with asyncio.timeout(240):
        while not is_true():
            clock.advance(1.0)
            await asyncio.sleep(0.01)


async def test_the_same_endpoints_again_change_nothing(registry: Registry) -> None:
    assert registry.publish((target("h:1"),))
    assert not registry.publish((target("h:1"),))
    assert registry.snapshot.generation == 1


async def test_a_restarted_registry_continues_the_generations() -> None:
    registry = Registry(generation=7)
    registry.publish((target("h:1"),))
    assert registry.snapshot.generation == 8
