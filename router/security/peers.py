"""The tenant of the current request: its API key, or else the network address that it came from."""

import ipaddress
from contextvars import ContextVar
from urllib.parse import unquote

from router.security.callers import current_caller

_NETWORK_BITS = 64
"""A host has a whole IPv6 network of this prefix length: its addresses count as one."""

_peer: ContextVar[str] = ContextVar("peer", default="")


def current_tenant() -> str:
    """Return the tenant of this task's request: the unit of fair queueing.

    NOTE: nothing that a client writes into a request decides it, such as a salt or a forwarded address.
    """
    return current_caller().name or _peer.get()


def set_peer(address: str) -> None:
    """Set the peer of this task's request, by its IP address, or by gRPC's name of it."""
    _peer.set(network_of(address))


def network_of(address: str) -> str:
    """Return the network of a peer: an IPv4 address, the /64 of an IPv6 address; "" for this machine.

    A local process may use any address of loopback, so all of them count as one.
    `address` is an IP address, or has the form of gRPC: `ipv4:10.0.0.1:443`, `ipv6:%5B::1%5D:443`.
    """
    kind, _, rest = address.partition(":")
    if kind in ("ipv4", "ipv6"):
        address = unquote(rest).rpartition(":")[0].strip("[]")
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    if found.is_loopback:
        return ""
    bits = _NETWORK_BITS if found.version == 6 else found.max_prefixlen
    return str(ipaddress.ip_network((int(found), bits), strict=False))
