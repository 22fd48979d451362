"""Tenants without API keys: one for each address or IPv6 network, one for all of this machine."""

import pytest

from router.security.callers import set_caller
from router.security.keys import Caller
from router.security.peers import current_tenant, network_of, set_peer


@pytest.mark.parametrize(
    "addresses",
    [
        ("10.0.0.1", "ipv4:10.0.0.1:443", "::ffff:10.0.0.1", "ipv6:%5B::ffff:10.0.0.1%5D:50051"),
        ("2001:db8::1", "2001:db8::ffff:2", "ipv6:[2001:db8::3]:1", "ipv6:%5B2001:db8:0:0:9::%5D:65535"),
        ("fe80::1%eth0", "ipv6:%5Bfe80::2%25eth1%5D:5"),
        ("127.0.0.1", "127.8.9.10", "::1", "ipv4:127.0.0.2:1", "ipv6:%5B::1%5D:1", "unix:/a", "", "a:b"),
    ],
)
async def test_the_addresses_of_one_peer_are_one_tenant(addresses: tuple[str, ...]) -> None:
    assert len(set(map(network_of, addresses))) == 1


async def test_other_peers_are_other_tenants_and_a_key_is_one_wherever_it_is_used() -> None:
    tenants = set()
    for address in ("10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8:0:1::1", "127.0.0.1"):
        set_peer(address)
        tenants.add(current_tenant())
    assert len(tenants) == 5
    set_caller(Caller("alice"))
    assert current_tenant() == "alice"
