"""The TLS identity of a process: its certificate and its credentials as a client and as a server."""

import contextlib
import ssl
from dataclasses import dataclass

import grpc

from flyserve.core.errors import ConfigError
from flyserve.core.messages import Role
from services.common.security.config import SecurityConfig, TlsConfig
from services.common.security.files import WatchedFiles, read_file

ROUTER = "router.flyserve"
CONTROLLER = "controller.flyserve"


def certificate_name(role: Role) -> str:
    """Return the name in the certificate of a tier, such as `sub-drafter.flyserve`."""
    return f"{role.value.replace('_', '-')}.flyserve"


@dataclass(frozen=True, slots=True)
class PeerTls:
    """Current credentials for calls to another process, whose certificate must have `name`."""

    credentials: grpc.ChannelCredentials
    name: str


_Material = tuple[bytes, bytes, bytes]
"""Authorities, key and certificate, in the order of gRPC's credentials."""


class Identity:
    """A certificate, its key and the trusted authority; reloaded when their files change."""

    def __init__(self, config: TlsConfig) -> None:
        """Read the files.

        Raises:
            ConfigError: A file cannot be read or is not PEM, or the key does not match the certificate.
        """
        self._config = config
        self._files = WatchedFiles((config.certificate, config.key, config.ca), self._load)

    @classmethod
    def of(cls, config: SecurityConfig) -> "Identity | None":
        """Return the identity of a process; None if it uses plaintext."""
        return None if config.tls is None else cls(config.tls)

    @property
    def version(self) -> int:
        """Return the version of the files; credentials of an earlier version are outdated."""
        self._files.current()
        return self._files.version

    def peer_tls(self, name: str) -> PeerTls:
        """Return the credentials for calls to a process whose certificate has `name`."""
        return PeerTls(grpc.ssl_channel_credentials(*self._files.current()), name)

    def server_credentials(self, client_certificates: bool) -> grpc.ServerCredentials:
        """Return the credentials of a gRPC server; every handshake uses the current files.

        With `client_certificates`, clients need a certificate of the same authority.
        """
        served = self._files.version

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            if self.version == served:
                return None
            served = self._files.version
            return self._configuration()

        configuration = self._configuration()
        # gRPC takes None for no change; its stubs do not allow it.
        return grpc.dynamic_ssl_server_credentials(configuration, fetch, client_certificates)  # type: ignore[arg-type]

    def server_context(self) -> ssl.SSLContext:
        """Return the context of any other server; every handshake uses the current files."""
        first = latest = self._context()
        served = self._files.version

        def swap(connection: ssl.SSLObject, name: str | None, initial: ssl.SSLContext) -> None:
            nonlocal latest, served
            if self.version != served:
                with contextlib.suppress(ssl.SSLError, OSError):
                    latest, served = self._context(), self._files.version
            connection.context = latest

        # NOTE: called for every handshake, even if the client sends no server name.
        first.sni_callback = swap
        return first

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        ca, key, certificate = self._files.current()
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # Without a password here, OpenSSL would ask for one at the terminal.
        context.load_cert_chain(self._config.certificate, self._config.key, password="")
        if self._config.client_certificates:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._config.ca)
        return context

    def _load(self) -> _Material:
        config = self._config
        certificate = read_file(config.certificate, "tls.certificate")
        key, ca = read_file(config.key, "tls.key"), read_file(config.ca, "tls.ca")
        try:
            self._context().load_verify_locations(config.ca)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or "they are not PEM"
            files = f"{config.certificate}, {config.key} and {config.ca}"
            raise ConfigError(f"tls: {files} do not belong together: {reason}") from None
        return ca, key, certificate
