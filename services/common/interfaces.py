"""The address at which other machines reach this one."""

import socket

from fly.errors import ConfigError

_ANY_PORT = 1


def interface_towards(address: str) -> str:
    """Return this machine's address on the route to `host:port`; nothing is sent.

    Raises:
        ConfigError: There is no route.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            found = str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"registry: {address} cannot be reached from here: {error.strerror}") from None
    return f"[{found}]" if ":" in found else found
