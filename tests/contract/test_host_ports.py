"""The port of a host: a given one, any free one, or the first free one of a range."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from fly.errors import ConfigError
from services.common import host as hosts_module
from services.common.host import Host, Service


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
