"""Configuration of what keeps a process's sockets its own."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from services.common.config import Config


class TlsConfig(Config):
    """Files in PEM format, read again when they change.

    Attributes:
        certificate: Of this process, with what is between it and the root; it names the process's role, as
            `target.flyserve`, and a router's also the names by which clients call it.
        key: Of the certificate.
        ca: Certificates of who may sign those of the other side.
        client_certificates: Whether the public service, too, takes only clients with a certificate that `ca`
            has signed; the services behind it always do.
    """

    certificate: Path
    key: Path
    ca: Path
    client_certificates: bool = False


class SecurityConfig(Config):
    """How a process protects what it serves.

    Attributes:
        tls: Encrypts every socket but those of health and metrics; null is plaintext.
        health_port: With TLS, where health is told in plaintext, and nothing else, for probes; 0 takes a free
            port; null tells it only with TLS.
    """

    tls: TlsConfig | None = None
    health_port: int | None = Field(None, ge=0, le=65_535)

    @model_validator(mode="after")
    def _needs_the_port(self) -> Self:
        if self.health_port is not None and self.tls is None:
            raise ValueError("health_port: is for TLS; without it the service itself tells its health")
        return self


class PublicSecurityConfig(SecurityConfig):
    """The same for the public service.

    Attributes:
        auth_tokens_file: API keys, as `flyserve token` writes them, read again when they change; null lets
            everybody in.
    """

    auth_tokens_file: Path | None = None
