"""Host of a gRPC server: health, reflection, error mapping, signals, drain."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from flyserve.core.errors import ConfigError
from services.common.addresses import bind_fault
from services.common.handlers import CallInterceptor
from services.common.in_process.server import InProcessServer, is_in_process
from services.common.open_files import most_open_files, raise_file_limit
from services.common.security.access_policy import AccessPolicy
from services.common.telemetry.process import Telemetry

logger = logging.getLogger(__name__)


class Health(HealthServicer):  # type: ignore[misc]
    """gRPC's health servicer, whose watches can be ended; else they would last for the whole grace period.

    NOTE: gRPC's own watch writes while it holds the lock that a change needs. So a client that takes no
    message would hold up the other watches, and the end of the host.
    """

    def __init__(self) -> None:
        super().__init__()
        self._watches: set[asyncio.Future[None]] = set()
        self._changed = asyncio.Event()

    async def set(self, service: str, status: int) -> None:
        await super().set(service, status)
        self._changed.set()
        self._changed = asyncio.Event()

    async def Watch(self, request: Any, context: Any) -> None:
        if (number := len(self._watches)) >= _MOST_WATCHES:
            found = f"health has {number} watches, at most {_MOST_WATCHES} are allowed"
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, found)
        watch = asyncio.ensure_future(self._watch(request.service, context))
        self._watches.add(watch)
        try:
            await asyncio.wait([watch])
        finally:
            self._watches.discard(watch)
            watch.cancel()
        if not watch.cancelled():
            watch.result()

    async def _watch(self, service: str, context: Any) -> None:
        """Send the status and each change of it."""
        unknown, sent = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN, None
        while True:
            changed, status = self._changed, self._server_status.get(service, unknown)
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            await changed.wait()

    def end_watches(self) -> None:
        """End every watch without an error."""
        for watch in self._watches:
            watch.cancel()


_MOST_WATCHES = 1_000
"""Watches of the health of one host, which need no key; a check is always answered."""
FAILED_GRACE_S = 1.0
"""Grace period of running calls after the service has failed."""
_HEALTH_NOTICE_S = 0.5
"""Time for health watchers to receive that the host drains, before their watches end."""
_HANDSHAKE_S = 10.0
"""Time in which a new connection must begin HTTP/2, after TLS where it is on."""
_MOST_CALLS = 2_048
"""Calls of one connection at once; further ones wait at their client."""
_OPTIONS: Sequence[tuple[str, Any]] = (
    # Otherwise two servers on one port would share its connections without an error.
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # NOTE: clients ping while a call waits, as ours do each 30 s, and while they read what came before. By
    # default a server that sends nothing allows one in five minutes, and ends the connection at the fourth.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.server_handshake_timeout_ms", int(_HANDSHAKE_S * 1000)),
    ("grpc.max_concurrent_streams", _MOST_CALLS),
)


@dataclass(frozen=True, slots=True)
class Service:
    """One gRPC service of a host.

    Attributes:
        name: Full name of the service, such as `flyserve.v1.Target`.
        close: Frees the servicer's resources; awaited after the server has stopped.
        failure: Returns when the service can no longer serve; awaited while the server runs.
        drain: Lets open streams end with their last sequence; called before the server stops.
    """

    name: str
    register: Callable[[grpc.aio.Server], None]
    close: Callable[[], Awaitable[None]]
    failure: Callable[[], Awaitable[None]] | None = None
    drain: Callable[[], None] = lambda: None


class SidecarServer(Protocol):
    """A server in the same process and event loop that starts and drains with the host."""

    @property
    def url(self) -> str:
        """Return its URL; known after `start`."""

    async def start(self) -> None:
        """Bind and serve; raise ConfigError if the address cannot be bound."""

    async def drain(self, grace_s: float) -> None:
        """Accept no new requests, cancel running ones after `grace_s`; a second call may shorten that."""


class Host:
    """A gRPC server with its health and reflection services, in the running event loop.

    Attributes:
        port: Port of the server; known after `start`.
        health_port: Port of the plaintext health service next to a TLS server; 0 without one.
        telemetry: Telemetry of its process; starts and ends with the host.
        failed: Set once the service can no longer serve. Health then reports not serving; the server still
            runs.
    """

    def __init__(
        self,
        service: Service,
        address: str = "127.0.0.1:0",
        *,
        access_policy: AccessPolicy | None = None,
        options: Sequence[tuple[str, Any]] = (),
        sidecars: Sequence[SidecarServer] = (),
        telemetry: Telemetry | None = None,
    ) -> None:
        """Prepare the server; without an access policy it accepts every caller, in plaintext.

        Port 0 of the address host:port takes a free port, 50100-50199 the first free one of the range. A host
        at `inprocess:NAME` has no port: only channels of this process reach it.
        """
        self.telemetry = telemetry or Telemetry()
        self._service = service
        self._address = address
        self._access_policy = access_policy or AccessPolicy()
        self._health = Health()
        interceptor = CallInterceptor(self._access_policy.check, self._access_policy.admit)
        self._server = _make_server(address, interceptor, options)
        self._interface = "127.0.0.1" if is_in_process(address) else address.rpartition(":")[0]
        self._health_server: grpc.aio.Server | None = None
        self._sidecars = sidecars
        self._watch: asyncio.Task[None] | None = None
        self.port = 0
        self.health_port = 0
        self.failed = asyncio.Event()

    @property
    def address(self) -> str:
        """Return the server's host:port; known after `start`."""
        return self._address if is_in_process(self._address) else f"{self._interface}:{self.port}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the server's host:port and the URLs of the sidecars; known after `start`."""
        return (self.address, *(sidecar.url for sidecar in self._sidecars))

    async def start(self) -> None:
        """Bind and serve, with the sidecars; if one of them fails, stop everything.

        Raises:
            ConfigError: A port is in use, or an address cannot be bound.
        """
        try:
            await self._start()
        except BaseException:
            await self.drain(0.0)
            raise

    async def _start(self) -> None:
        raise_file_limit()
        names = (self._service.name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        self._service.register(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(names, self._server)
        self.port = self._bind()
        self._access_policy.log_exposure(self.address)
        self.telemetry.start(self._interface)
        await self._server.start()
        await self._serve_plaintext_health()
        for sidecar in self._sidecars:
            await sidecar.start()
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)
        if self._service.failure is not None:
            self._watch = asyncio.create_task(self._watch_service(self._service.failure))
        addresses, files = ", ".join(self.addresses), most_open_files()
        logger.info("%s listens at %s, and may open %d files", self._service.name, addresses, files)

    async def drain(self, grace_s: float) -> None:
        """Report not serving, let running calls finish within `grace_s`, then free everything."""
        if self._watch is not None:
            self._watch.cancel()
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        asyncio.get_running_loop().call_later(_HEALTH_NOTICE_S, self._health.end_watches)
        self._service.drain()
        drains = (sidecar.drain(grace_s) for sidecar in self._sidecars)
        await asyncio.gather(self._stop_server(grace_s), *drains)
        if self._health_server is not None:
            await self._health_server.stop(0.0)
        await self._service.close()
        await self.telemetry.close()

    async def _stop_server(self, grace_s: float) -> None:
        """Stop the server; a second call may shorten the grace of the first one.

        NOTE: of two stops at the same time, gRPC may end one with a cancellation that nobody requested.
        """
        try:
            await self._server.stop(grace_s)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise

    async def _watch_service(self, failure: Callable[[], Awaitable[None]]) -> None:
        await failure()
        logger.error("%s can serve no more", self._service.name)
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self.failed.set()

    def _bind(self) -> int:
        if is_in_process(self._address):
            return 0
        for port in _ports_of(self._address.rpartition(":")[2]):
            # NOTE: gRPC would print an error of its own.
            if port and bind_fault(self._interface, port):
                continue
            with contextlib.suppress(RuntimeError):
                return self._listen(f"{self._interface}:{port}")
        raise ConfigError(f"address: {self._address} is in use or cannot be bound")

    def _listen(self, address: str) -> int:
        if self._access_policy.credentials is None:
            return self._server.add_insecure_port(address)
        # NOTE: new credentials for every port: gRPC asks credentials that were used before only for changes.
        return self._server.add_secure_port(address, self._access_policy.credentials())

    async def _serve_plaintext_health(self) -> None:
        """Serve only health on a plaintext port, for probes, which have no certificate."""
        if self._access_policy.health_port is None:
            return
        self._health_server = grpc.aio.server(options=_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._health_server)
        address = f"{self._interface}:{self._access_policy.health_port}"
        try:
            self.health_port = self._health_server.add_insecure_port(address)
        except RuntimeError:
            raise ConfigError(f"health_port: {address} is in use or cannot be bound") from None
        await self._health_server.start()

    async def _set_health(self, status: int) -> None:
        for name in ("", self._service.name):
            await self._health.set(name, status)


def _make_server(
    address: str, interceptor: CallInterceptor, options: Sequence[tuple[str, Any]]
) -> grpc.aio.Server:
    """Return the server of an address, not bound yet."""
    if is_in_process(address):
        # It has the part of the interface that a host and the generated code use.
        return cast(grpc.aio.Server, InProcessServer(address, interceptor))
    return grpc.aio.server(interceptors=(interceptor,), options=(*_OPTIONS, *options))


def _ports_of(ports: str) -> Sequence[int]:
    """Return the ports of a range such as `50100-50199` or of a single number; none if it is neither."""
    first, _, last = ports.partition("-")
    try:
        return range(int(first), int(last or first) + 1)
    except ValueError:
        return ()
