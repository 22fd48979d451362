"""Server of a process's metrics: on its own threads, few of them, whatever its clients do."""

import socket
import threading
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from flyserve.core.errors import ConfigError

_SILENCE_S = 10.0
"""Time without a byte of a client, or to it, after which its connection is closed."""
_LONGEST_S = 60.0
"""Time for a whole connection."""
_ALL_PORTS = 65_536
_MOST_CONNECTIONS = 32
"""Connections at once; a further one is closed without an answer."""


class MetricsServer:
    """Serves a registry at `address` until it is closed."""

    def __init__(self, registry: CollectorRegistry, interface: str, port: int, num_ports: int = 1) -> None:
        """Bind the first free port of `num_ports` from `port` on, and serve; port 0 takes any free one.

        Raises:
            ConfigError: All these ports are in use, or the interface cannot be bound.
        """
        self._server = _bind(registry, interface, range(port, min(port + num_ports, _ALL_PORTS)))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.address = f"{interface}:{self._server.server_port}"

    def close(self) -> None:
        """End the server and its thread; blocks for up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    """Has a thread for each connection."""

    daemon_threads = True

    def __init__(self, registry: CollectorRegistry, interface: str, port: int) -> None:
        self.address_family, *_, address = socket.getaddrinfo(
            interface, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self._places = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((str(address[0]), port), _Connection)
        self.set_app(make_wsgi_app(registry))

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        timer = threading.Timer(_LONGEST_S, _shut_down, [request])
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a client is silent, or has closed its connection."""


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended meanwhile
        connection.shutdown(socket.SHUT_RDWR)


class _Connection(WSGIRequestHandler):
    timeout = _SILENCE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _bind(registry: CollectorRegistry, interface: str, ports: range) -> _Server:
    for port in ports:
        try:
            return _Server(registry, interface.strip("[]"), port)
        except OSError as error:
            reason = error.strerror
    place = f"{interface}:{ports[0]}" if len(ports) == 1 else f"{interface}:{ports[0]}-{ports[-1]}"
    raise ConfigError(f"telemetry.metrics_port: {place} cannot be bound: {reason}")
