"""A failed service: its host reports it and is drained, and the process that runs it is notified."""

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.channel import open_channel
from services.common.host import Host, Service
from services.common.host_thread import HostThread
from services.common.launch import serve_until_stopped, stop_events

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Fragile:
    """A service that fails on demand."""

    def __init__(self) -> None:
        self.fails = asyncio.Event()
        self.is_closed = False

    async def failure(self) -> None:
        await self.fails.wait()

    async def close(self) -> None:
        self.is_closed = True

    def host(self) -> Host:
        return Host(Service("flyserve.test.Fragile", lambda server: None, self.close, self.failure))


@pytest.fixture
async def fragile() -> AsyncIterator[Fragile]:
    async with asyncio.timeout(240):
        yield Fragile()


async def test_health_reports_a_failure_while_the_server_runs(fragile: Fragile) -> None:
    host = fragile.host()
    await host.start()
    async with open_channel(host.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        changes = aiter(stub.Watch(health_pb2.HealthCheckRequest(service="")))
        assert (await anext(changes)).status == SERVING
        fragile.fails.set()
        assert (await anext(changes)).status == NOT_SERVING
        await host.failed.wait()
        assert not fragile.is_closed
    await host.drain(0.0)
    assert fragile.is_closed


async def test_serving_ends_after_a_failure(fragile: Fragile) -> None:
    host = fragile.host()
    async with stop_events() as stop:
        await serve_until_stopped(host, 60.0, stop, lambda address: fragile.fails.set())
    assert host.failed.is_set() and fragile.is_closed


async def test_a_collection_of_garbage_skips_what_a_process_made_before_it_serves(fragile: Fragile) -> None:
    frozen = []
    before = Fragile()
    before.fails.owner = before  # type: ignore[attr-defined]
    garbage = weakref.ref(before)
    del before

    def ready(addresses: object) -> None:
        frozen.append((gc.get_freeze_count(), len(gc.get_objects())))
        fragile.fails.set()

    async with stop_events() as stop:
        await serve_until_stopped(fragile.host(), 60.0, stop, ready)
    ((num_frozen, num_others),) = frozen
    assert num_frozen > 100 * num_others and garbage() is None


def test_a_host_on_a_thread_calls_back_after_its_drain() -> None:
    made: list[Fragile] = []
    called = threading.Event()

    async def build() -> Host:
        made.append(Fragile())
        return made[0].host()

    thread = HostThread(build, called.set)
    asyncio.run_coroutine_threadsafe(_fail(made[0]), thread.loop).result()
    assert called.wait(240) and made[0].is_closed
    thread.stop(0.0)


async def _fail(fragile: Fragile) -> None:
    fragile.fails.set()
