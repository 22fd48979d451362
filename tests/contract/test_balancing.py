"""Prefix affinity hits the replicas' caches, over real sockets, measured by the engines' own counters."""

from benchmarks.scenarios.load.balancing import Plan, measure


async def test_affinity_doubles_the_cache_hits_of_round_robin_and_spreads_the_work() -> None:
    plan = Plan(requests=200)
    affinity = await measure("prefix_affinity", 0.7, plan)
    in_turn = await measure("round_robin", 0.7, plan)
    assert affinity.hit_rate >= 2 * in_turn.hit_rate > 0
    assert affinity.busiest <= 1.5
