"""The HTTP server that Prometheus scrapes, on a thread of its own."""

import threading
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from fly.errors import ConfigError


class MetricsServer:
    """Serves a registry until it is closed.

    Attributes:
        address: host:port that it listens at.
    """

    def __init__(self, registry: CollectorRegistry, interface: str, port: int) -> None:
        """Binds and serves; port 0 takes a free one.

        Raises:
            ConfigError: The port is in use, or the interface cannot be bound.
        """
        self._server: Any
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_http_server(port, interface.strip("[]"), registry)
        except OSError as error:
            place = f"{interface}:{port}"
            raise ConfigError(f"telemetry.metrics_port: {place} cannot be bound: {error.strerror}") from None
        self.address = f"{interface}:{self._server.server_port}"

    def close(self) -> None:
        """Ends the server and its thread; blocks for up to half a second."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
