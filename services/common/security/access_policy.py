"""Access policies: the credentials of a host's port, the check of its callers, and its public health port."""

import ipaddress
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import grpc

from flyserve.core.errors import Unauthenticated
from services.common.handlers import Admit, Check, Context
from services.common.security.config import SecurityConfig
from services.common.security.identity import CONTROLLER, Identity

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """The callers that a host accepts.

    Attributes:
        credentials: Creates the credentials of a port; None for plaintext.
        check: Called before every call except health checks; None accepts every caller.
        admit: Block around every call that was checked; None admits every call.
        health_port: Port of an additional plaintext health service; None for none.
    """

    credentials: Callable[[], grpc.ServerCredentials] | None = None
    check: Check | None = None
    admit: Admit | None = None
    health_port: int | None = None

    def log_exposure(self, address: str) -> None:
        """Log a warning if `address` can be reached from other machines without protection."""
        if self.credentials is not None or is_loopback(address.rpartition(":")[0]):
            return
        exposure = f"API keys are sent to {address} in plaintext"
        if self.check is None:
            exposure = f"{address} accepts every caller that can reach it"
        logger.warning("%s: see security.tls, and SECURITY.md", exposure)


def service_access_policy(config: SecurityConfig, identity: Identity | None, *callers: str) -> AccessPolicy:
    """Return the policy of a service behind the router: with TLS, accept certificates with these names only.

    The controller may also call `Info` of any service, to check its health and load.
    """
    if identity is None:
        return AccessPolicy()
    return AccessPolicy(
        partial(identity.server_credentials, True),
        require_peer_name(*callers),
        health_port=config.health_port,
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
    """Return True if a server at `host` can be reached from this machine only, or this process."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.startswith(("unix", "inprocess"))
