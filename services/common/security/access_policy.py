"""What a host asks of its callers, and what it shows to everybody."""

import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health

from fly.errors import Unauthenticated
from services.common.handlers import Coroutine, Generator, around
from services.common.security.config import SecurityConfig
from services.common.security.identity import CONTROLLER, Identity

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Check = Callable[[str, Context], None]
"""Raises Unauthenticated where a call of this method must not be answered."""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """How a host keeps its sockets its own.

    Attributes:
        credentials: Makes those of a port; None is plaintext.
        check: Asked before every call but those of health; None lets everybody in.
        health_port: Where health is told in plaintext; None tells it nowhere else.
    """

    credentials: Callable[[], grpc.ServerCredentials] | None = None
    check: Check | None = None
    health_port: int | None = None

    @property
    def interceptors(self) -> tuple[grpc.aio.ServerInterceptor, ...]:
        """Of its server."""
        return () if self.check is None else (CheckInterceptor(self.check),)

    def log_exposure(self, address: str) -> None:
        """Says in the log what somebody who can reach `address` could do."""
        if self.credentials is not None or is_loopback(address.rpartition(":")[0]):
            return
        if self.check is None:
            logger.warning("whoever reaches %s may call it: see security.tls, and SECURITY.md", address)
        else:
            logger.warning("API keys travel to %s in plaintext: see security.tls, and SECURITY.md", address)


def service_access_policy(config: SecurityConfig, identity: Identity | None, *callers: str) -> AccessPolicy:
    """Of a service behind the router: with TLS, only those who bear one of these names may call it.

    The controller may ask any service for its `Info`, which says how it is.
    """
    if identity is None:
        return AccessPolicy()
    return AccessPolicy(
        partial(identity.server_credentials, True), require_peer_name(*callers), config.health_port
    )


def require_peer_name(*names: str) -> Check:
    """Lets in whose certificate bears one of these names; for `Info`, the controller as well."""

    def check(method: str, context: Context) -> None:
        borne = {
            bytes(name).decode("ascii", "replace") for name in context.auth_context().get("peer_dns", ())
        }
        allowed = (*names, CONTROLLER) if method.endswith("/Info") else names
        if borne.isdisjoint(allowed):
            raise Unauthenticated(f"the caller's certificate does not name {' or '.join(names)}")

    return check


def is_loopback(host: str) -> bool:
    """Whether what listens there can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.startswith("unix")


class CheckInterceptor(grpc.aio.ServerInterceptor):
    """Asks a check before every call but those of health: probes and load balancers know no secret."""

    def __init__(self, check: Check) -> None:
        self._check = check

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(f"/{health.SERVICE_NAME}/"):
            return handler
        check = partial(self._check, handler_call_details.method)
        return around(handler, partial(_checked, check), partial(_checked_stream, check))


def _checked(check: Callable[[Context], None], method: Coroutine) -> Coroutine:
    async def call(request: Any, context: Context) -> Any:
        check(context)
        return await method(request, context)

    return call


def _checked_stream(check: Callable[[Context], None], method: Generator) -> Generator:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        check(context)
        async for response in method(request, context):
            yield response

    return call
