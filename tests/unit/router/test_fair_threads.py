"""Threads for work off the event loop: tenants take turns, and one alone has all threads."""

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context

import pytest

from router.cost import off_loop
from router.fair_threads import FairThreads
from router.security.peers import set_peer

PATIENCE_S = 240.0


def submitted(pool: FairThreads, tenant: str, work: Callable[[], object]) -> "asyncio.Future[object]":
    """Submit work as a task of this tenant does, by `off_loop`."""
    context = copy_context()
    context.run(set_peer, tenant)
    return asyncio.get_running_loop().create_task(off_loop(1.0, work), context=context)


async def test_work_of_one_tenant_does_not_wait_for_all_of_another() -> None:
    pool, release, order = FairThreads(1), threading.Event(), list[str]()
    asyncio.get_running_loop().set_default_executor(pool)
    works = [submitted(pool, "10.0.0.1", lambda: release.wait(PATIENCE_S))]
    names = [("10.0.0.1", f"a{index}") for index in range(50)] + [("10.0.0.2", "b0"), ("10.0.0.2", "b1")]
    for tenant, name in names:
        works.append(submitted(pool, tenant, lambda name=name: order.append(name)))  # type: ignore[misc]
    while sum(map(len, pool._waiting.values())) < len(names):
        await asyncio.sleep(0)
    works[3].cancel()
    while not any(future.cancelled() for jobs in pool._waiting.values() for future, _ in jobs):
        await asyncio.sleep(0)
    release.set()
    await asyncio.gather(*works, return_exceptions=True)
    expected = [f"a{index}" for index in range(50) if index != 2]
    assert [name for name in order if name[0] == "a"] == expected, "in their order, without the cancelled one"
    assert {"b0", "b1"} <= set(order[:4])
    assert not pool._waiting


async def test_a_tenant_alone_has_all_threads_and_errors_are_raised() -> None:
    pool, both = FairThreads(2), threading.Barrier(2)
    asyncio.get_running_loop().set_default_executor(pool)
    await asyncio.gather(*(off_loop(1.0, lambda: both.wait(PATIENCE_S)) for _ in range(2)))
    with pytest.raises(ZeroDivisionError):
        await off_loop(1.0, lambda: 1 // 0)
    pool.shutdown()
    with pytest.raises(RuntimeError):
        await off_loop(1.0, both.reset)
    assert not pool._waiting
