"""Notices of a sequence that reach its client."""

import asyncio

from flyserve.core.messages import Opened, Queued
from services.engine.future import EngineFuture


async def test_parts_of_a_prompt_that_nobody_has_taken_are_one_notice() -> None:
    """A client takes few messages at once: more than that end its sequence."""
    future, reported = EngineFuture(), list[Queued | Opened]()

    async def report(notice: Queued | Opened) -> None:
        reported.append(notice)
        if len(reported) == 1:
            for _ in range(100):
                future.notify(Opened())
        await asyncio.sleep(0)

    for notice in (Opened(), Opened(), Queued(), Opened(), Opened()):
        future.notify(notice)
    future.deliver()
    await future.wait(report)
    assert reported == [Opened(), Queued(), Opened()]
