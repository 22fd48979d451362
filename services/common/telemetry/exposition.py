"""The HTTP server that Prometheus scrapes, on a thread of its own."""

import threading
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from fly.errors import ConfigError


class MetricsServer:
    """Serves a registry until it is closed.

    Attributes:
        address: host:port of the server.
    """

    def __init__(self, registry: CollectorRegistry, interface: str, port: int, num_ports: int = 1) -> None:
        """Bind the first free port of `num_ports` from `port` on, and serve; port 0 takes any free one.

        Raises:
            ConfigError: All these ports are in use, or the interface cannot be bound.
        """
        self._server: Any
        self._thread: threading.Thread
        self._server, self._thread = _bind(registry, interface, range(port, port + num_ports))
        self.address = f"{interface}:{self._server.server_port}"

    def close(self) -> None:
        """End the server and its thread; blocks for up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _bind(registry: CollectorRegistry, interface: str, ports: range) -> tuple[Any, threading.Thread]:
    for port in ports:
        try:
            return start_http_server(port, interface.strip("[]"), registry)
        except OSError as error:
            reason = error.strerror
    place = f"{interface}:{ports[0]}" if len(ports) == 1 else f"{interface}:{ports[0]}-{ports[-1]}"
    raise ConfigError(f"telemetry.metrics_port: {place} cannot be bound: {reason}")
