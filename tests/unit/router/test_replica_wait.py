"""The wait for a first replica: its places are shared by tenants."""

import asyncio

import pytest

from flyserve.core.errors import Overloaded
from router.admission.replica_wait import ReplicaWait
from router.policies import create_policy
from router.replicas.pools import ReplicaPool, any_replica


async def begun(wait: ReplicaWait, tenant: str, number: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(wait.until_ready(tenant, any_replica, 1)) for _ in range(number)]
    for _ in range(10):
        await asyncio.sleep(0)
    return tasks


async def test_a_tenant_that_takes_all_places_loses_them_to_others() -> None:
    wait = ReplicaWait(ReplicaPool(create_policy("round_robin")), "target", 240.0, most=4)
    greedy = await begun(wait, "greedy", 6)
    assert [task.done() for task in greedy] == [False] * 4 + [True] * 2
    with pytest.raises(Overloaded, match="no target is ready, and 4 requests wait for one already"):
        await greedy[4]
    (other,) = await begun(wait, "other", 1)
    assert not other.done() and (wait.num_requests, wait.num_choices) == (4, 4)
    with pytest.raises(Overloaded, match="other tenants have fewer requests that wait"):
        await greedy[3]
    more = await begun(wait, "other", 2)
    assert [task.done() for task in (*greedy[:3], other, *more)] == [False, False, True, False, False, True]
    for task in (*greedy, other, *more):
        task.cancel()
    await asyncio.gather(*greedy, other, *more, return_exceptions=True)
    assert (wait.num_requests, wait.num_choices) == (0, 0)


async def test_a_wait_returns_when_its_time_is_over() -> None:
    wait = ReplicaWait(ReplicaPool(create_policy("round_robin")), "target", 0.0, most=1)
    await wait.until_ready("a", any_replica)
    assert wait.num_requests == 0
