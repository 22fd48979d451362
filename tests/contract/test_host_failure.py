"""A service that can serve no more: its host says so, is drained, and whoever runs it is told."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.channel import open_channel
from services.common.host import Host, Service, serve_until_signalled
from services.common.host_thread import HostThread

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Frail:
    """A service that fails when it is told to."""

    def __init__(self) -> None:
        self.fails = asyncio.Event()
        self.is_closed = False

    async def failure(self) -> None:
        await self.fails.wait()

    async def close(self) -> None:
        self.is_closed = True

    def host(self) -> Host:
        return Host(Service("flyserve.test.Frail", lambda server: None, self.close, self.failure))


@pytest.fixture
async def frail() -> AsyncIterator[Frail]:
    async with asyncio.timeout(20):
        yield Frail()


async def test_health_tells_of_a_failure_while_the_server_runs(frail: Frail) -> None:
    host = frail.host()
    await host.start()
    async with open_channel(host.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        changes = aiter(stub.Watch(health_pb2.HealthCheckRequest(service="")))
        assert (await anext(changes)).status == SERVING
        frail.fails.set()
        assert (await anext(changes)).status == NOT_SERVING
        await host.failed.wait()
        assert not frail.is_closed
    await host.drain(0.0)
    assert frail.is_closed


async def test_serving_ends_with_a_failure(frail: Frail) -> None:
    host = frail.host()
    await serve_until_signalled(host, 60.0, lambda address: frail.fails.set())
    assert host.failed.is_set() and frail.is_closed


def test_a_host_on_a_thread_calls_back_after_it_was_drained() -> None:
    made: list[Frail] = []
    called = threading.Event()

    async def build() -> Host:
        made.append(Frail())
        return made[0].host()

    thread = HostThread(build, called.set)
    asyncio.run_coroutine_threadsafe(_fail(made[0]), thread.loop).result()
    assert called.wait(20) and made[0].is_closed
    thread.stop(0.0)


async def _fail(frail: Frail) -> None:
    frail.fails.set()
