"""The virtual clock wakes sleeping coroutines in order, and only when time moves."""

import asyncio

from tests.support.clock import VirtualClock


async def test_sleeping_coroutines_wake_in_the_order_of_their_time() -> None:
    clock, woken = VirtualClock(), []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.now()))

    tasks = [asyncio.create_task(sleeper("late", 3)), asyncio.create_task(sleeper("early", 1))]
    await asyncio.sleep(0)
    clock.advance(0.5)
    await asyncio.sleep(0)
    assert woken == []
    clock.advance(2.5)
    await asyncio.gather(*tasks)
    assert woken == [("early", 3.0), ("late", 3.0)]
