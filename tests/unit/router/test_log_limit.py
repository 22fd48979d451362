"""Log lines about rejected requests: one of each tenant per second, with the number of the others."""

from router.generation.log_limit import LogLimit
from router.security.callers import set_caller
from router.security.keys import ANONYMOUS, Caller
from router.security.peers import set_peer
from tests.support.clock import VirtualClock


async def test_each_tenant_has_one_line_per_second_which_counts_the_others() -> None:
    clock = VirtualClock()
    limit = LogLimit(clock)

    def lines(caller: Caller, number: int, peer: str = "") -> list[dict[str, int]]:
        set_caller(caller)
        set_peer(peer)
        found = (limit.figures() for _ in range(number))
        return [figures for figures in found if figures is not None]

    alice, bob = Caller("alice"), Caller("bob")
    assert lines(alice, 1000) == [{}] and lines(bob, 1) == [{}]
    assert lines(ANONYMOUS, 5, "10.0.0.1") == lines(ANONYMOUS, 5, "10.0.0.2") == [{}]
    clock.advance(1.0)
    assert lines(alice, 2) == [{"unlogged": 999}] and lines(bob, 2) == [{}]
    clock.advance(1.0)
    assert lines(alice, 1) == [{"unlogged": 1}]
    clock.advance(2.0)
    assert lines(alice, 1) == [{}]
