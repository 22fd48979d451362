"""Addresses of this machine: which can be listened at, which reach another machine."""

import socket
from collections.abc import Mapping

from flyserve.core.errors import ConfigError, one_line

_ANY_PORT = 1


def bind_fault(host: str, port: int) -> str | None:
    """Return the reason why a server cannot listen at this address; None if it can."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:
        return _reason(error)
    return None


def shared_port_fault(ports: Mapping[str, int | None]) -> str | None:
    """Return which two keys have the same port; None if each has its own. 0 takes any free one, None none."""
    keys: dict[int, str] = {}
    for key, port in ports.items():
        if port and (other := keys.setdefault(port, key)) != key:
            return f"{key}: is {port}, as {other} is: give each its own"
    return None


def interface_towards(address: str) -> str:
    """Return this machine's address on the route to `host:port`; nothing is sent.

    Raises:
        ConfigError: There is no route.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        family, kind, _, _, socket_address = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(socket_address)
            found = str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"registry: {address} cannot be reached from here: {_reason(error)}") from None
    return f"[{found}]" if ":" in found else found


def _reason(error: OSError | UnicodeError) -> str:
    """Return why an address cannot be used; a name that none can have, such as `a..b`, is a UnicodeError."""
    return getattr(error, "strerror", None) or one_line(error)
