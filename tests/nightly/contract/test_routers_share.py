"""Four routers before 16 targets behave like one: cache hits, imbalance, places, autoscaling."""

import asyncio
from dataclasses import replace

import pytest

from tests.contract.balancing_rig import Traffic, measure, running

TARGETS = Traffic(targets=16, cached=16, prefixes=160)
AFFINITY = replace(TARGETS, clients=32, requests=6000, skipped=3000, forward_s=0.01)
CLIENTS, PLACES = 128, 4
CROWDED = replace(TARGETS, places=PLACES, cached=100, requests=CLIENTS, forward_s=0.5, new_tokens=4000)
"""Twice as many requests as places, and none ends during the test."""


async def test_four_routers_hit_caches_like_one_and_spread_the_work() -> None:
    alone, four = await measure(AFFINITY), await measure(replace(AFFINITY, routers=4))
    print(f"\n1 router: {alone}\n4 routers: {four}")
    assert four.hit_rate >= alone.hit_rate - 0.06
    assert four.busiest <= max(1.4, alone.busiest + 0.1)


@pytest.mark.parametrize("routers", [1, 4])
async def test_no_request_is_refused_or_missed_by_the_autoscaler(routers: int) -> None:
    """Each of the requests takes a place, waits for one in a target, or waits in a router that reports it."""
    traffic = replace(CROWDED, routers=routers)
    async with running(traffic) as deployment, asyncio.TaskGroup() as group:
        prompts = traffic.prompts()
        clients = [group.create_task(deployment.send(prompts, number)) for number in range(CLIENTS)]
        while True:
            loads = [engine.load() for engine in deployment.engines]
            opened, queued = sum(load.sequences for load in loads), sum(load.queued for load in loads)
            if opened + queued + deployment.registry.waiting() == CLIENTS:
                break
            assert not any(client.done() for client in clients)
            await asyncio.sleep(0.05)
        print(f"\n{routers} routers: {opened} at work, {queued} wait in targets")
        assert 0.75 * CLIENTS / 2 <= opened <= CLIENTS / 2, "every target works"
        for client in clients:
            client.cancel()
