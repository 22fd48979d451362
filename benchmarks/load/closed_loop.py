"""Clients that ask for one response after the other, as many at once as a level says."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Protocol

from benchmarks.load.plan import Level
from benchmarks.load.window import Stream
from fly.response import Chunk


class Chunks(Protocol):
    """A response as it comes; closing it cancels the rest."""

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    async def aclose(self) -> None: ...


Ask = Callable[[Sequence[int], int], Chunks]
"""From a prompt and a number of new tokens to the chunks of a response."""

_MAX_NEW_TOKENS = 512
_USUAL_TOKENS = 120
"""Of a response; the first ones are cut to less, each client's at another length."""


async def run_window(
    ask: Ask, prompts: Iterator[Sequence[int]], level: Level
) -> tuple[list[Stream], float, float]:
    """One window: every response that was asked for, and when the window began and ended.

    What still runs at its end is broken off. The clients' first responses have different lengths, so that
    from then on some begin while others are half-way, as they would after a long time.

    Raises:
        FlyServeError: A request was rejected.
    """
    streams: list[Stream] = []

    async def client(index: int) -> None:
        await asyncio.sleep(level.spread_s * index / level.concurrency)
        limit = max(1, _USUAL_TOKENS * (index + 1) // level.concurrency)
        while True:
            stream = Stream(time.perf_counter())
            streams.append(stream)
            await _follow(stream, ask(next(prompts), limit))
            limit = _MAX_NEW_TOKENS

    begin_s = time.perf_counter() + level.settle_s
    try:
        async with asyncio.timeout(level.settle_s + level.measure_s), asyncio.TaskGroup() as clients:
            for index in range(level.concurrency):
                clients.create_task(client(index))
    except TimeoutError:
        return streams, begin_s, begin_s + level.measure_s
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    raise AssertionError("clients go on until they are stopped")


async def _follow(stream: Stream, chunks: Chunks) -> None:
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.tokens:
                stream.arrivals.append((time.perf_counter(), len(chunk.tokens)))
            stream.statistics = chunk.statistics
