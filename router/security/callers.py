"""The caller of the request at hand, as whoever let it in found out."""

from contextvars import ContextVar
from functools import partial
from typing import Any

from router.security.keys import ANYBODY, Caller, Keys
from services.common.security.access_policy import AccessPolicy, Check
from services.common.security.config import PublicSecurityConfig
from services.common.security.identity import Identity

_caller: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)

AUTHORIZATION = "authorization"


def current_caller() -> Caller:
    """Of the request that this task works for."""
    return _caller.get()


def name_caller(caller: Caller) -> None:
    """Says for whom this task, and every task that it begins, works from now on."""
    _caller.set(caller)


def key_check(keys: Keys) -> Check:
    """Lets calls in that bring a known key in their metadata."""

    def check(method: str, context: Any) -> None:
        said = [value for name, value in context.invocation_metadata() or () if name == AUTHORIZATION]
        # NOTE: of two, a proxy before us may have looked at the other.
        name_caller(keys.caller(said[0] if len(said) == 1 and isinstance(said[0], str) else ""))

    return check


def public_access_policy(
    config: PublicSecurityConfig, identity: Identity | None, keys: Keys | None
) -> AccessPolicy:
    """Of the router's own gRPC server."""
    wants_certificates = config.tls is not None and config.tls.client_certificates
    credentials = partial(identity.server_credentials, wants_certificates) if identity else None
    return AccessPolicy(credentials, key_check(keys) if keys else None, config.health_port)
