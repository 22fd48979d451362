"""The longest piece of work on the event loops of this process, in CPU time."""

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


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
        if seconds > longest.seconds:
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
