"""Compilations by key: shared by those who wait, and not begun for nobody."""

import asyncio
import threading

import pytest

from services.common.grammars.compilations import Compilations


class Result:
    num_bytes = 1
    is_lost = False


async def test_a_compilation_that_nobody_waits_for_does_not_begin() -> None:
    compilations, ends, begun = Compilations[Result](), threading.Event(), list[str]()

    def ask(name: str) -> asyncio.Task[Result]:
        def compile_it() -> Result:
            begun.append(name)
            assert ends.wait(240)
            return Result()

        return asyncio.create_task(compilations.result(name.encode(), compile_it, "client"))

    first, left, shared, again = ask("first"), ask("left"), ask("shared"), ask("shared")
    while not begun:
        await asyncio.sleep(0)
    for task in (first, left, shared):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    back = ask("left")
    await asyncio.sleep(0)
    back.cancel()
    ends.set()
    assert await again and await ask("first")
    assert begun == ["first", "shared"]
