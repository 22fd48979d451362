"""Turns of tenants at a few places."""

import asyncio

import pytest

from flyserve.core.errors import Overloaded
from services.common.grammars.turns import Turns


class Crowd:
    """Tenants that take turns, and leave when the test lets them."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.granted: list[str] = []
        self._ends: list[asyncio.Event] = []

    async def _take(self, name: str) -> None:
        async with self._turns.turn(name[0]):
            self.granted.append(name)
            self._ends.append(end := asyncio.Event())
            await end.wait()

    async def add(self, *names: str) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._take(name)) for name in names]
        await asyncio.sleep(0)
        return tasks

    async def end_one(self) -> None:
        self._ends.pop(0).set()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_a_tenant_with_many_delays_another_by_one_turn_at_most() -> None:
    crowd = Crowd(Turns(1, 100, 100))
    await crowd.add(*(f"a{number}" for number in range(9)), "b0", "c0", "b1")
    for _ in range(6):
        await crowd.end_one()
    assert crowd.granted == ["a0", "b0", "c0", "a1", "b1", "a2", "a3"]


async def test_a_tenant_has_one_place_even_if_others_are_free() -> None:
    crowd = Crowd(Turns(2, 100, 100))
    await crowd.add("a0", "a1")
    assert crowd.granted == ["a0"]
    await crowd.add("b0")
    assert crowd.granted == ["a0", "b0"]


async def test_a_cancelled_turn_is_free_for_the_next() -> None:
    crowd = Crowd(Turns(1, 100, 100))
    first, second, _ = await crowd.add("a0", "b0", "c0")
    second.cancel()
    first.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert crowd.granted == ["a0", "c0"]


async def test_cancelled_turns_do_not_count() -> None:
    turns = Turns(1, 2, 3)
    crowd = Crowd(turns)
    _, *waiting = await crowd.add("a0", "a1", "a2")
    waiting[1].cancel()
    await asyncio.sleep(0)
    await crowd.add("a3")
    waiting[0].cancel()
    await crowd.end_one()
    assert crowd.granted == ["a0", "a3"]


async def test_too_many_are_refused() -> None:
    turns = Turns(1, 2, 3)
    crowd = Crowd(turns)
    await crowd.add("a0", "a1", "a2")
    with pytest.raises(Overloaded, match="at most 2 of one client"):
        async with turns.turn("a"):
            pass
    await crowd.add("b0")
    with pytest.raises(Overloaded, match="3 of all"):
        async with turns.turn("c"):
            pass
