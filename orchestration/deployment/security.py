"""Security configuration of each process of a deployment: no more than the process needs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flyserve.core.messages import Role
from services.common.config import changed_values, parse
from services.common.home import expanded
from services.common.security.access_policy import AccessPolicy, service_access_policy
from services.common.security.config import PublicSecurityConfig, SecurityConfig
from services.common.security.identity import ROUTER, Identity, certificate_name

ROLE = "{role}"
"""Placeholder in a path for the role in the process's certificate name, such as `target`."""

_FILES = ("certificate", "key", "ca")


def security_of(security: PublicSecurityConfig, name: str) -> dict[str, Any]:
    """Return the section `security` of the process whose certificate has `name`; empty in plaintext."""
    if security.tls is None:
        return {}
    role = name.partition(".")[0]
    return {"tls": {file: str(getattr(security.tls, file)).replace(ROLE, role) for file in _FILES}}


def router_security(security: PublicSecurityConfig) -> dict[str, Any]:
    """Return the section `security` of a router, with the keys that only clients and probes need."""
    made = changed_values(security, PublicSecurityConfig)
    if security.tls is not None:
        made["tls"] |= security_of(security, ROUTER)["tls"]
    return made


def controller_identity(security: Mapping[str, Any]) -> Identity | None:
    """Return the controller's identity, from its section `security`."""
    return Identity.of(parse(SecurityConfig, dict(security), "security"))


def registry_access_policy(identity: Identity | None) -> AccessPolicy:
    """Return the registry's access policy: routers and drafters may read, no gRPC call can register."""
    return service_access_policy(SecurityConfig(), identity, ROUTER, certificate_name(Role.DRAFTER))


def located(security: PublicSecurityConfig, folder: Path) -> PublicSecurityConfig:
    """Return the section with relative paths taken from `folder`; files are opened where they are used."""
    found: dict[str, Any] = {}
    if (tls := security.tls) is not None:
        files = {file: folder / expanded(getattr(tls, file)) for file in _FILES}
        found["tls"] = tls.model_copy(update=files)
    if (keys := security.auth_tokens_file) is not None:
        found["auth_tokens_file"] = folder / expanded(keys)
    return security.model_copy(update=found)
