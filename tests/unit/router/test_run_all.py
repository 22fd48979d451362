"""Work that runs in parallel ends together, and ends its clean-up."""

import asyncio

import pytest

from router.generation.choices import run_all


async def test_a_cancelled_call_waits_for_the_clean_up_of_all() -> None:
    ended: list[str] = []
    begun = asyncio.Event()

    async def ends_at_once() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("at once")

    async def ends_slowly() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            ended.append("slowly")

    call = asyncio.create_task(run_all([ends_at_once(), ends_slowly()]))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == ["at once", "slowly"]
