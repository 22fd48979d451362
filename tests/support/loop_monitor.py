"""The longest piece of work on the event loops of this process, in CPU time."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

MAX_PIECE_S = 0.1
"""Most CPU time in one piece on an event loop: several times what is usual, on slow machines too."""
ATTEMPTS = 5


@dataclass(slots=True)
class LongestPiece:
    """The longest callback or task step so far.

    Attributes:
        seconds: Its CPU time on the loop's thread; that of other threads and processes does not count.
        name: Its callback, or its task and the coroutine's position.
    """

    seconds: float = 0.0
    name: str = ""


@contextmanager
def longest_piece() -> Iterator[LongestPiece]:
    """Measure every callback of every event loop; the garbage collector is off meanwhile.

    An event loop does nothing else while a callback runs, so the longest one delays all streams by its time.
    """
    longest, run = LongestPiece(), asyncio.Handle._run

    def timed(handle: Any) -> None:
        started = time.thread_time()
        run(handle)
        seconds = time.thread_time() - started
        # A piece that goes on after the measurement is not in it.
        if asyncio.Handle._run is timed and seconds > longest.seconds:
            longest.seconds = seconds
            longest.name = repr(getattr(handle._callback, "__self__", handle._callback))

    gc.collect()
    gc.disable()
    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield longest
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        gc.enable()


async def assert_short_pieces(work: Callable[[int], Awaitable[None]]) -> None:
    """Assert that in one of five runs of `work`, which gets its number, no callback takes long.

    The clock of CPU time of a busy virtual machine counts some of its waiting too, so one long piece proves
    nothing. Work that is really long is long in every run.
    """
    pieces = []
    for attempt in range(ATTEMPTS):
        with longest_piece() as longest:
            await work(attempt)
        pieces.append(longest)
        if longest.seconds <= MAX_PIECE_S:
            return
    raise AssertionError(pieces)
