import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from flyserve.core.errors import ConfigError
from services.common.telemetry import metrics_server
from services.common.telemetry.metrics_server import MetricsServer

_LONGEST_S = 240.0


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with closing(MetricsServer(CollectorRegistry(), "127.0.0.1", 0)) as server:
        host, _, port = server.address.rpartition(":")
        yield host, int(port)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other end has closed a connection without an answer."""
    try:
        return not connection.recv(1)
    except ConnectionResetError:
        return True


def is_served(address: tuple[str, int]) -> bool:
    with socket.create_connection(address, _LONGEST_S) as connection:
        try:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            return connection.recv(12) == b"HTTP/1.0 200"
        except ConnectionError:
            return False


def test_the_first_free_port_of_several_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held, ExitStack() as stack:
        taken = held.getsockname()[1]
        servers = [
            stack.enter_context(closing(MetricsServer(CollectorRegistry(), "127.0.0.1", taken, 20)))
            for _ in range(2)
        ]
        ports = [int(server.address.rpartition(":")[2]) for server in servers]
        assert taken < ports[0] < ports[1] < taken + 20
        for server in servers:
            assert urlopen(f"http://{server.address}/metrics").status == 200


def test_no_free_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        taken = held.getsockname()[1]
        with pytest.raises(ConfigError, match=f"telemetry.metrics_port: 127.0.0.1:{taken} cannot be bound"):
            MetricsServer(CollectorRegistry(), "127.0.0.1", taken)


def test_a_silent_connection_is_closed(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_server._Connection, "timeout", 0.1)
    with socket.create_connection(address, _LONGEST_S) as silent:
        silent.sendall(b"GET /met")
        assert is_closed(silent)
    assert is_served(address)
    assert not capfd.readouterr().err


def test_a_connection_that_trickles_is_closed(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "_LONGEST_S", 0.1)
    with socket.create_connection(address, _LONGEST_S) as slow:
        slow.sendall(b"GET /met")
        assert is_closed(slow)


def test_connections_beyond_the_most_are_closed_and_cost_no_thread(address: tuple[str, int]) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(address, _LONGEST_S))
            for _ in range(metrics_server._MOST_CONNECTIONS + 5)
        ]
        assert all(map(is_closed, silent[-5:]))
        assert threading.active_count() - before <= 2 * metrics_server._MOST_CONNECTIONS
    while not is_served(address):
        pass
