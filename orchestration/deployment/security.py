"""Security configuration of each process of a deployment: no more than the process needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fly.messages import Role
from services.common.config import parse
from services.common.security.access_policy import AccessPolicy, service_access_policy
from services.common.security.config import PublicSecurityConfig, SecurityConfig, TlsConfig
from services.common.security.identity import CONTROLLER, ROUTER, Identity, certificate_name

ROLE = "{role}"
"""Placeholder in a path for the role in the process's certificate name, such as `target`."""


def security_of(security: PublicSecurityConfig, name: str) -> dict[str, Any]:
    """Return the section `security` of the process whose certificate has `name`; empty in plaintext."""
    if security.tls is None:
        return {}
    role = name.partition(".")[0]
    files = {
        field: str(getattr(security.tls, field)).replace(ROLE, role) for field in ("certificate", "key", "ca")
    }
    return {"tls": files}


def router_security(security: PublicSecurityConfig) -> dict[str, Any]:
    """Return the section `security` of a router, with the keys that only clients and probes need."""
    made = security_of(security, ROUTER)
    if security.tls is not None:
        made["tls"]["client_certificates"] = security.tls.client_certificates
    if security.health_port is not None:
        made["health_port"] = security.health_port
    if security.auth_tokens_file is not None:
        made["auth_tokens_file"] = str(security.auth_tokens_file)
    return made


def controller_identity(security: Mapping[str, Any]) -> Identity | None:
    """Return the controller's identity, from its section `security`."""
    return Identity.of(parse(SecurityConfig, dict(security), "security"))


def registry_access_policy(identity: Identity | None) -> AccessPolicy:
    """Return the registry's access policy: routers and drafters may read, no gRPC call can register."""
    return service_access_policy(SecurityConfig(), identity, ROUTER, certificate_name(Role.DRAFTER))


def controller_security(security: PublicSecurityConfig) -> dict[str, Any]:
    """Return the section `security` of the controller."""
    return security_of(security, CONTROLLER)


def located(security: PublicSecurityConfig, folder: Path) -> PublicSecurityConfig:
    """Return the section with relative paths taken from `folder`; files are opened where they are used."""
    found: dict[str, Any] = {}
    if (tls := security.tls) is not None:
        files = {name: _in(folder, getattr(tls, name)) for name in ("certificate", "key", "ca")}
        found["tls"] = TlsConfig(**files, client_certificates=tls.client_certificates)
    if (keys := security.auth_tokens_file) is not None:
        found["auth_tokens_file"] = _in(folder, keys)
    return security.model_copy(update=found)


def _in(folder: Path, path: Path) -> Path:
    return folder / path.expanduser()
