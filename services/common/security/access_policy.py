"""Access policies: the credentials of a host's port, the check of its callers, and its public health port."""

import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health

from fly.errors import Unauthenticated
from services.common.handlers import Context, wrap_handler
from services.common.security.config import SecurityConfig
from services.common.security.identity import CONTROLLER, Identity

logger = logging.getLogger(__name__)

Check = Callable[[str, Context], None]
"""Raises Unauthenticated if a call of this method must be rejected."""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The callers that a host accepts.

    Attributes:
        credentials: Creates the credentials of a port; None for plaintext.
        check: Called before every call except health checks; None accepts every caller.
        health_port: Port of an additional plaintext health service; None for none.
    """

    credentials: Callable[[], grpc.ServerCredentials] | None = None
    check: Check | None = None
    health_port: int | None = None

    @property
    def interceptors(self) -> tuple[grpc.aio.ServerInterceptor, ...]:
        """Return the interceptors of the server."""
        return () if self.check is None else (CheckInterceptor(self.check),)

    def log_exposure(self, address: str) -> None:
        """Log a warning if `address` can be reached from other machines without protection."""
        if self.credentials is not None or is_loopback(address.rpartition(":")[0]):
            return
        if self.check is None:
            logger.warning(
                "%s accepts every caller that can reach it: see security.tls, and SECURITY.md", address
            )
        else:
            logger.warning("API keys are sent to %s in plaintext: see security.tls, and SECURITY.md", address)


def service_access_policy(config: SecurityConfig, identity: Identity | None, *callers: str) -> AccessPolicy:
    """Return the policy of a service behind the router: with TLS, accept certificates with these names only.

    The controller may also call `Info` of any service, to check its health and load.
    """
    if identity is None:
        return AccessPolicy()
    return AccessPolicy(
        partial(identity.server_credentials, True), require_peer_name(*callers), config.health_port
    )


def require_peer_name(*names: str) -> Check:
    """Accept callers whose certificate has one of these names; for `Info`, the controller as well."""

    def check(method: str, context: Context) -> None:
        found = {
            bytes(name).decode("ascii", "replace") for name in context.auth_context().get("peer_dns", ())
        }
        allowed = (*names, CONTROLLER) if method.endswith("/Info") else names
        if found.isdisjoint(allowed):
            raise Unauthenticated(f"the caller's certificate does not name {' or '.join(names)}")

    return check


def is_loopback(host: str) -> bool:
    """Return True if a server at `host` can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.startswith("unix")


class CheckInterceptor(grpc.aio.ServerInterceptor):
    """Runs a check before every call except health checks: probes and load balancers have no credentials."""

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

        @asynccontextmanager
        async def checked(context: Context) -> AsyncIterator[None]:
            self._check(handler_call_details.method, context)
            yield

        return wrap_handler(handler, checked)
