"""Connection of a client: addresses, encryption and credentials."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from flyserve.core.errors import ConfigError, quoted

_WITHOUT_PORT = re.compile(
    r"[^:/]*|https?://.*|(?!(?:unix|unix-abstract|dns|xds|ipv4|ipv6|passthrough):)[^:/]+:\D*"
)
"""Addresses that gRPC would look up as the name of a host, or at a port of its own choice."""
_PORT = re.compile(r"(?:(?:dns|ipv4|ipv6):.*|\[.*\]|[^:/]+):(-?\d+)")
_LAST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM format.

    Attributes:
        root: Certificates of the authorities that may sign the server's certificate; None takes gRPC's own.
        certificate: Certificate of the client, for servers that require one.
        key: Key of the client's certificate.
    """

    root: str | Path | None = None
    certificate: str | Path | None = None
    key: str | Path | None = None


TlsOption = bool | str | Path | Tls
"""False is plaintext; True trusts gRPC's own root certificates; a path trusts those in that file."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Parameters of a channel to any of the addresses.

    Attributes:
        addresses: host:port each, in the order in which they are tried.
        credentials: None is plaintext.
        metadata: Metadata of every call.
    """

    addresses: tuple[str, ...]
    credentials: grpc.ChannelCredentials | None
    metadata: tuple[tuple[str, str], ...]


def make_connection(
    address: str | Sequence[str], tls: TlsOption, token: str | None, allow_plaintext_token: bool
) -> Connection:
    """Check the parameters of a client.

    Raise ConfigError if there is no address, a file cannot be read, or a token would travel in plaintext.
    """
    addresses = (address,) if isinstance(address, str) else tuple(address)
    if not addresses or not all(addresses):
        raise ConfigError(f"address: is {address!r}, must be host:port, or a list of such")
    for place in addresses:
        if _WITHOUT_PORT.fullmatch(place) or not place.isprintable():
            raise ConfigError(f"address: is {place!r}, must be host:port, such as 127.0.0.1:50051")
        if not _has_port(place):
            raise ConfigError(f"address: is {quoted(place)}, its port must be from 1 to {_LAST_PORT}")
    credentials = _credentials(tls)
    if token is None:
        return Connection(addresses, credentials, ())
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigError("token: must be printable ASCII, and not empty")
    exposed = [] if credentials else [place for place in addresses if not is_local(place)]
    if exposed and not allow_plaintext_token:
        raise ConfigError(f"token: would travel to {exposed[0]} in plaintext; use tls, or allow it expressly")
    return Connection(addresses, credentials, (("authorization", f"Bearer {token}"),))


def _credentials(tls: TlsOption) -> grpc.ChannelCredentials | None:
    if tls is False:
        return None
    files = tls if isinstance(tls, Tls) else Tls(root=None if tls is True else tls)
    if (files.certificate is None) != (files.key is None):
        raise ConfigError("tls: certificate and key belong together")
    return grpc.ssl_channel_credentials(_read(files.root), _read(files.key), _read(files.certificate))


def _read(path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"tls: {path}: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise ConfigError(f"tls: {path}: is no file of certificates or of a key in PEM format")
    return content


def _has_port(address: str) -> bool:
    """Check the port of an address that has one: gRPC would take another one for a number above the last."""
    found = _PORT.fullmatch(address)
    return found is None or (len(found[1]) <= len(str(_LAST_PORT)) and 0 < int(found[1]) <= _LAST_PORT)


def is_local(address: str) -> bool:
    """Return True if data sent there never leaves the machine."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition("/")[2].removeprefix("ipv4:").removeprefix("ipv6:").removeprefix("dns:")
    host = host.rpartition(":")[0].strip("[]") or host
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
