"""What each process of a deployment is told of its security: no more than it needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fly.messages import Role
from services.common.config import parse
from services.common.security.access_policy import AccessPolicy, service_access_policy
from services.common.security.config import PublicSecurityConfig, SecurityConfig, TlsConfig
from services.common.security.identity import CONTROLLER, ROUTER, Identity, certificate_name

ROLE = "{role}"
"""Stands in a path for the first part of the name that the process's certificate bears."""


def security_of(security: PublicSecurityConfig, name: str) -> dict[str, Any]:
    """Of a process whose certificate bears `name`, as its configuration has it; empty in plaintext."""
    if security.tls is None:
        return {}
    role = name.partition(".")[0]
    files = {
        field: str(getattr(security.tls, field)).replace(ROLE, role) for field in ("certificate", "key", "ca")
    }
    return {"tls": files}


def service_security(security: PublicSecurityConfig, role: Role) -> dict[str, Any]:
    """Of a replica."""
    return security_of(security, certificate_name(role))


def router_security(security: PublicSecurityConfig) -> dict[str, Any]:
    """Of a router: the API keys and what clients and probes need are its alone."""
    told = security_of(security, ROUTER)
    if security.tls is not None:
        told["tls"]["client_certificates"] = security.tls.client_certificates
    if security.health_port is not None:
        told["health_port"] = security.health_port
    if security.auth_tokens_file is not None:
        told["auth_tokens_file"] = str(security.auth_tokens_file)
    return told


def controller_identity(security: Mapping[str, Any]) -> Identity | None:
    """Of the controller, from what `security_of` says."""
    return Identity.of(parse(SecurityConfig, dict(security), "security"))


def registry_access_policy(identity: Identity | None) -> AccessPolicy:
    """Routers and drafters may ask where replicas are; nobody can register by gRPC."""
    return service_access_policy(SecurityConfig(), identity, ROUTER, certificate_name(Role.DRAFTER))


def controller_security(security: PublicSecurityConfig) -> dict[str, Any]:
    """Of the controller."""
    return security_of(security, CONTROLLER)


def located(security: PublicSecurityConfig, folder: Path) -> PublicSecurityConfig:
    """With relative paths taken from `folder`; whether a file is there is seen where it is used."""
    found: dict[str, Any] = {}
    if (tls := security.tls) is not None:
        files = {name: _in(folder, getattr(tls, name)) for name in ("certificate", "key", "ca")}
        found["tls"] = TlsConfig(**files, client_certificates=tls.client_certificates)
    if (keys := security.auth_tokens_file) is not None:
        found["auth_tokens_file"] = _in(folder, keys)
    return security.model_copy(update=found)


def _in(folder: Path, path: Path) -> Path:
    return folder / path.expanduser()
