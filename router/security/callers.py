"""The caller of the current request, set by the check that accepted it; the access to the gRPC server."""

from contextvars import ContextVar
from functools import partial
from typing import Any

from router.security.keys import ANONYMOUS, Caller, Keys
from services.common.handlers import Admit, Check
from services.common.security.access_policy import AccessPolicy
from services.common.security.config import PublicSecurityConfig
from services.common.security.identity import Identity

_caller: ContextVar[Caller] = ContextVar("caller", default=ANONYMOUS)

AUTHORIZATION = "authorization"


def current_caller() -> Caller:
    """Return the caller of this task's request."""
    return _caller.get()


def set_caller(caller: Caller) -> None:
    """Set the caller of this task, and of every task that it starts from now on."""
    _caller.set(caller)


def key_check(keys: Keys) -> Check:
    """Return a check that accepts calls with a valid API key in their metadata."""

    def check(method: str, context: Any) -> None:
        values = [value for name, value in context.invocation_metadata() or () if name == AUTHORIZATION]
        # NOTE: two are rejected: a proxy in front may have checked the other one.
        set_caller(keys.caller(values[0] if len(values) == 1 and isinstance(values[0], str) else ""))

    return check


def public_access_policy(
    config: PublicSecurityConfig, identity: Identity | None, keys: Keys | None, admit: Admit
) -> AccessPolicy:
    """Return the policy of the router's gRPC server."""
    wants_certificates = config.tls is not None and config.tls.client_certificates
    credentials = partial(identity.server_credentials, wants_certificates) if identity else None
    return AccessPolicy(
        credentials=credentials,
        check=key_check(keys) if keys else None,
        admit=admit,
        health_port=config.health_port,
    )
