"""Configuration of TLS and API keys."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from services.common.config import Config


class TlsConfig(Config):
    """Files in PEM format, read again when they change."""

    certificate: Path
    """Certificate of this process, followed by the intermediate ones. It names the process's role, such as
    `target.flyserve`; a router's certificate also has the names by which clients call it."""

    key: Path
    """Private key of the certificate."""

    ca: Path
    """Certificates of the authorities that may sign the other side's certificate."""

    client_certificates: bool = False
    """Require clients of the public service to have a certificate signed by `ca`. The internal services
    always require one."""


class SecurityConfig(Config):
    """TLS of a process's sockets."""

    tls: TlsConfig | None = None
    """Encrypts every socket except those of health and metrics; null is plaintext."""

    health_port: int | None = Field(None, ge=0, le=65_535)
    """With TLS: port that serves health, and nothing else, in plaintext, for probes. 0 takes a free port;
    null serves health over TLS only."""

    @model_validator(mode="after")
    def _needs_the_port(self) -> Self:
        if self.health_port is not None and self.tls is None:
            raise ValueError("health_port: is for TLS; in plaintext the service itself reports its health")
        return self


class PublicSecurityConfig(SecurityConfig):
    """TLS and API keys of the public service."""

    auth_tokens_file: Path | None = None
    """File with API keys, as `flyserve token` writes it, read again when it changes; null accepts every
    client."""
