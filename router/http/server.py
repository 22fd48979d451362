"""HTTP server in the event loop of the gRPC host, started and drained with it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from flyserve.core.errors import ConfigError
from router.http.connections import Connection, ConnectionPool

_KEEP_ALIVE_S = 60
_LAST_RESPONSES_S = 1.0
"""Time for the responses to requests that a stop cancels."""


class HttpServer:
    """Serves an application; a sidecar of the host."""

    def __init__(
        self, app: ASGIApp, host: str, port: int, pool: ConnectionPool, tls: ssl.SSLContext | None = None
    ) -> None:
        """Prepare the server; port 0 takes a free one, and without `tls` it serves plaintext."""
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            http="h11",
            # NOTE: requests that follow on one connection would inherit the caller of the one before.
            reset_contextvars=True,
            ws="none",
            lifespan="off",
            log_config=None,
            # NOTE: its warnings are about what a client sent: one for each odd byte that anybody sends.
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            ssl_context_factory=None if tls is None else lambda config, default: tls,
        )
        self._server = _Server(config, pool)
        self._host = host
        self._port = port
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Its URL; the port is known after `start`."""
        return f"http{'s' if self._server.config.is_ssl else ''}://{self._host}:{self._port}"

    async def start(self) -> None:
        """Bind and serve; raise ConfigError if the port is in use, or the address cannot be bound."""
        bound = _bind(self._host, self._port)
        self._port = bound.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve(sockets=[bound]))
        await self._server.listens.wait()

    async def drain(self, grace_s: float) -> None:
        """Accept no more requests; cancel those that do not finish within `grace_s`."""
        if self._serving is None:
            return
        self._server.leave()
        await asyncio.wait((self._serving,), timeout=grace_s)
        if not self._serving.done():
            await self._server.cut_off()
        await self._serving


class _Server(uvicorn.Server):
    """uvicorn's server without signal handlers: the host handles signals.

    Attributes:
        listens: Set once it accepts connections.
    """

    def __init__(self, config: uvicorn.Config, pool: ConnectionPool) -> None:
        super().__init__(config)
        self._pool = pool
        self.listens = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections; as uvicorn does, but with connections of our own and a limit of a handshake."""
        config, state = self.config, self.server_state
        limit_s = self._pool.header_timeout_s if config.ssl else None
        self.servers = [
            await asyncio.get_running_loop().create_server(
                lambda: Connection(self._pool, config, state, {}),
                sock=bound,
                ssl=config.ssl,
                backlog=config.backlog,
                ssl_handshake_timeout=limit_s,
            )
            for bound in sockets or ()
        ]
        self.started = True
        self.listens.set()

    def leave(self) -> None:
        """Accept no more connections."""
        for server in self.servers:
            server.close()
        self.should_exit = True

    async def cut_off(self) -> None:
        """Cancel running requests, let them send their errors, and close every connection."""
        tasks = tuple(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_RESPONSES_S)
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
        self.force_exit = True


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; old connections of an earlier process do not block the port."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        bound = socket.create_server(address, family=family, dualstack_ipv6=family == socket.AF_INET6)
    except OSError:
        raise ConfigError(f"http_port: {host}:{port} is in use or cannot be bound") from None
    # NOTE: connections inherit it. asyncio sets it only where a socket's protocol is given; without it the
    # body of a response waits until the client has acknowledged the header: 40 ms.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound
