"""Prefix affinity hits the replicas' caches, over real sockets, measured by the engines' own counters."""

from benchmarks.balancing.__main__ import measure_one
from benchmarks.balancing.load import Load


async def test_affinity_doubles_the_cache_hits_of_round_robin_and_spreads_the_work() -> None:
    load = Load(requests=400, exponent=0.7)
    affinity, in_turn = await measure_one("prefix_affinity", load), await measure_one("round_robin", load)
    assert affinity.hit_rate >= 2 * in_turn.hit_rate > 0
    assert affinity.busiest <= 1.5
