"""Work off the event loop: what becomes of it when its call is cancelled."""

import asyncio
import threading

import pytest

from router.cost import off_loop

PATIENCE_S = 240.0


async def test_a_cancelled_call_ends_with_the_work_that_a_thread_has_begun() -> None:
    """Else a client that leaves would free its place while its work goes on."""
    begun, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        release.wait(PATIENCE_S)

    call = asyncio.create_task(off_loop(1.0, work))
    async with asyncio.timeout(PATIENCE_S):
        await begun.wait()
        call.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not call.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_fault_of_the_work_is_that_of_the_call() -> None:
    for cost_s in (0.0, 1.0):
        with pytest.raises(ZeroDivisionError):
            await off_loop(cost_s, lambda: 1 // 0)
