"""Hosts: the failure of their service, which they report, and their ports."""

import asyncio
import contextlib
import gc
import socket
import struct
import threading
import weakref
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flyserve.core.errors import ConfigError
from services.common import host as hosts_module
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


def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Return kind, flags and content of the next frame."""
    start = await reader.readexactly(9)
    return start[3], start[4], await reader.readexactly(int.from_bytes(start[:3], "big"))


async def watch_without_room(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Watch the health of a server as a client that leaves no room for messages; return once it is called."""
    names = (":method", ":scheme", ":path", ":authority", "content-type", "te")
    values = ("POST", "http", "/grpc.health.v1.Health/Watch", "here", "application/grpc", "trailers")
    texts = (text.encode() for pair in zip(names, values, strict=True) for text in pair)
    fields = [bytes((len(text),)) + text for text in texts]
    headers = b"".join(b"\0" + name + value for name, value in zip(fields[::2], fields[1::2], strict=True))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 4, 0)))
    writer.write(frame(1, 4, 1, headers) + frame(0, 1, 1, bytes(5)))
    while (await read_frame(reader))[0] != 1:  # its headers
        pass
    return reader, writer


async def test_a_watch_of_health_that_takes_no_message_holds_up_nobody(fragile: Fragile) -> None:
    host = fragile.host()
    await host.start()
    _, writer = await watch_without_room(host.port)
    async with open_channel(host.address) as channel:
        changes = aiter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
        assert (await anext(changes)).status == SERVING
        fragile.fails.set()
        assert (await anext(changes)).status == NOT_SERVING
    await host.drain(0.0)
    assert fragile.is_closed
    writer.close()


async def test_pings_while_the_server_sends_nothing_end_no_call(fragile: Fragile) -> None:
    host = fragile.host()
    await host.start()
    reader, writer = await watch_without_room(host.port)
    pings = {bytes([number]) * 8 for number in range(10)}
    writer.write(b"".join(frame(6, 0, 0, ping) for ping in pings))
    while pings:
        kind, flags, content = await read_frame(reader)
        assert kind != 7, content  # the end of the connection
        if (kind, flags) == (6, 1):
            pings.remove(content)
    await host.drain(0.0)
    writer.close()


async def test_watches_of_health_are_limited_and_checks_are_not(
    fragile: Fragile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_module, "_MOST_WATCHES", 1)
    host, asked = fragile.host(), health_pb2.HealthCheckRequest()
    await host.start()
    async with open_channel(host.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        first = stub.Watch(asked)
        assert (await anext(aiter(first))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError, match="health has 1 watches, at most 1 are allowed"):
            await anext(aiter(stub.Watch(asked)))
        assert (await stub.Check(asked)).status == SERVING
        first.cancel()
        status = None
        while status is None:  # until the server has learned of it
            with contextlib.suppress(grpc.aio.AioRpcError):
                status = (await anext(aiter(stub.Watch(asked)))).status
        assert status == SERVING
    await host.drain(0.0)


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


async def nothing() -> None:
    pass


def host_at(address: str) -> Host:
    return Host(Service("flyserve.test.Silent", lambda server: None, nothing), address)


@pytest.fixture
def taken() -> Iterator[int]:
    """Yield a port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


async def test_a_range_gives_the_first_port_that_is_free(taken: int) -> None:
    hosts = [host_at(f"127.0.0.1:{taken}-{taken + 20}") for _ in range(2)]
    try:
        for host in hosts:
            await host.start()
        first, second = (host.port for host in hosts)
        assert taken < first < second <= taken + 20
    finally:
        for host in hosts:
            await host.drain(0.0)


@pytest.mark.parametrize("ports", ["{0}", "{0}-{0}", "none", "2-1", ""])
async def test_an_address_without_a_free_port_is_reported(
    taken: int, ports: str, capfd: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{ports.format(taken)}"
    host = host_at(address)
    with pytest.raises(ConfigError, match=f"address: {address} is in use or cannot be bound"):
        await host.start()
    await host.drain(0.0)
    assert not capfd.readouterr().err, "gRPC prints no lines of its own"


async def test_a_taken_port_of_ipv6_is_reported() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server:
        host = host_at(f"[::1]:{server.getsockname()[1]}")
        with pytest.raises(ConfigError, match="is in use or cannot be bound"):
            await host.start()
        await host.drain(0.0)


@pytest.mark.parametrize("sent", [b"", b"PRI * HTTP"])
async def test_a_connection_that_does_not_begin_http2_is_closed(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(hosts_module._OPTIONS)
    options["grpc.server_handshake_timeout_ms"] //= 20
    monkeypatch.setattr(hosts_module, "_OPTIONS", tuple(options.items()))
    host = host_at("127.0.0.1:0")
    await host.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
        writer.write(sent)
        await asyncio.wait_for(reader.read(), timeout=240)
        writer.close()
    finally:
        await host.drain(0.0)
