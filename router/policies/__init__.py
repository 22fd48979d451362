"""Balancing policies by name; each is one decision function."""

from collections.abc import Callable

from router.policies.base import Policy
from router.policies.prefix_affinity import PrefixAffinity
from router.policies.simple import LeastLoad, PowerOfTwo, RoundRobin

POLICIES: dict[str, Callable[[], Policy]] = {
    "prefix_affinity": PrefixAffinity,
    "least_load": LeastLoad,
    "power_of_two": PowerOfTwo,
    "round_robin": RoundRobin,
}


def create_policy(name: str) -> Policy:
    """Return a new policy object; every pool needs its own."""
    return POLICIES[name]()
