"""Virtual time: a clock that moves only when a test advances it, and an event loop that never waits."""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import TypeVar

T = TypeVar("T")


class VirtualClock:
    """A clock that moves only by `advance`; for one event loop."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), wake))
        await wake

    async def run(self, coroutines: Iterable[Coroutine[object, object, T]]) -> list[T]:
        """Run coroutines to their end; move time to the end of the next sleep when nothing else can run."""
        loop = asyncio.get_running_loop()
        tasks = [asyncio.ensure_future(each) for each in coroutines]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            if not loop._ready and not all(task.done() for task in tasks):  # type: ignore[attr-defined]
                assert self._sleepers, "everything waits, and nothing sleeps"
                self.advance(max(0.0, self._sleepers[0][0] - self._now))
        return [task.result() for task in tasks]

    def advance(self, seconds: float) -> None:
        """Move time forward and wake, in order, the coroutines whose sleep has ended."""
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, wake = heapq.heappop(self._sleepers)
            if not wake.done():
                wake.set_result(None)


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that jumps to its next timer instead of waiting; for coroutines alone."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._poll = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now_s

    def _jump(self, timeout_s: float | None) -> object:
        assert timeout_s is not None, "everything waits, and no timer runs"
        self._now_s += max(0.0, timeout_s)
        return self._poll(0)


def in_virtual_time(main: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    """Return a test that runs a coroutine on a `JumpingLoop`."""

    def test() -> None:
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            runner.run(main())

    return test


def pass_time(seconds: float) -> None:
    """Let all timers of the running event loop that expire within some seconds expire now.

    So a test has a long limit, which no slow machine reaches, and need not wait for it.
    """
    loop, before = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    offset_s = before - time.monotonic() + seconds
    loop.time = lambda: time.monotonic() + offset_s  # type: ignore[method-assign]
