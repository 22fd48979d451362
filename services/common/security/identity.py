"""Who a process is to others: its certificate, and how it calls and is called with it."""

import contextlib
import ssl
from dataclasses import dataclass

import grpc

from fly.errors import ConfigError
from fly.messages import Role
from services.common.security.config import SecurityConfig, TlsConfig
from services.common.security.files import WatchedFiles, read_file

ROUTER = "router.flyserve"
CONTROLLER = "controller.flyserve"


def certificate_name(role: Role) -> str:
    """The name that the certificate of a tier bears, such as `sub-drafter.flyserve`."""
    return f"{role.value.replace('_', '-')}.flyserve"


@dataclass(frozen=True, slots=True)
class PeerTls:
    """How to call another process.

    Attributes:
        credentials: Of this process, as its files are now.
        name: That the other's certificate must bear.
    """

    credentials: grpc.ChannelCredentials
    name: str


@dataclass(frozen=True, slots=True)
class _Material:
    certificate: bytes
    key: bytes
    ca: bytes


class Identity:
    """A certificate with its key, and the authority that this process trusts; they follow their files."""

    def __init__(self, config: TlsConfig) -> None:
        """Reads the files.

        Raises:
            ConfigError: One cannot be read, is not PEM, or the key is not the certificate's.
        """
        self._config = config
        self._files = WatchedFiles((config.certificate, config.key, config.ca), self._load)

    @classmethod
    def of(cls, config: SecurityConfig) -> "Identity | None":
        """That of a process; None where it speaks in plaintext."""
        return None if config.tls is None else cls(config.tls)

    @property
    def version(self) -> int:
        """Changes with the files; credentials of an earlier version are out of date."""
        self._files.current()
        return self._files.version

    def peer_tls(self, name: str) -> PeerTls:
        """How to call a process whose certificate bears `name`."""
        material = self._files.current()
        credentials = grpc.ssl_channel_credentials(material.ca, material.key, material.certificate)
        return PeerTls(credentials, name)

    def server_credentials(self, client_certificates: bool) -> grpc.ServerCredentials:
        """Of a gRPC server; every handshake takes the files as they are then.

        Args:
            client_certificates: Take only clients with a certificate of the same authority.
        """
        served = self._files.version

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            if self.version == served:
                return None
            served = self._files.version
            return self._configuration()

        configuration = self._configuration()
        # gRPC takes None for no change; its stubs do not know.
        return grpc.dynamic_ssl_server_credentials(configuration, fetch, client_certificates)  # type: ignore[arg-type]

    def server_context(self) -> ssl.SSLContext:
        """Of any other server; every handshake takes the files as they are then."""
        first = latest = self._context()
        served = self._files.version

        def swap(connection: ssl.SSLObject, name: str | None, initial: ssl.SSLContext) -> None:
            nonlocal latest, served
            if self.version != served:
                with contextlib.suppress(ssl.SSLError, OSError):
                    latest, served = self._context(), self._files.version
            connection.context = latest

        # NOTE: called for every handshake, also of clients that name no server.
        first.sni_callback = swap
        return first

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        material = self._files.current()
        pair = (material.key, material.certificate)
        return grpc.ssl_server_certificate_configuration([pair], material.ca)

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # Without a password of ours, OpenSSL would ask for one at the terminal.
        context.load_cert_chain(self._config.certificate, self._config.key, password="")
        if self._config.client_certificates:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._config.ca)
        return context

    def _load(self) -> _Material:
        config = self._config
        material = _Material(
            read_file(config.certificate, "tls.certificate"),
            read_file(config.key, "tls.key"),
            read_file(config.ca, "tls.ca"),
        )
        try:
            self._context().load_verify_locations(config.ca)
        except (ssl.SSLError, OSError) as error:
            reason = getattr(error, "reason", None) or "they are not PEM"
            files = f"{config.certificate}, {config.key} and {config.ca}"
            raise ConfigError(f"tls: {files} do not belong together: {reason}") from None
        return material
