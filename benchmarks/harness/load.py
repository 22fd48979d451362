"""Load on a router: clients that wait for responses (closed loop), requests at a fixed rate (open loop).

A window is a stretch of time; only the tokens that arrive in it count.
"""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from flyserve import AsyncClient
from flyserve.core.request import SpeculationParams
from flyserve.core.response import Chunk, Statistics

_MAX_NEW_TOKENS = 512
_USUAL_TOKENS = 120
"""Tokens of a usual response. First responses are shorter, each client's by a different amount."""

K = TypeVar("K")
V = TypeVar("V")


Interleave = Callable[..., dict[K, list[V]]]
"""Function that interleaves measurements, with the parameters of `interleave` except for `advance`."""


def interleave(
    names: Sequence[K],
    count: int,
    measure: Callable[[K, int], V],
    warm_ups: int = 1,
    advance: Callable[[], None] = lambda: None,
) -> dict[K, list[V]]:
    """Return `count` measurements of every name; each turn has every name once, in `turn_order`.

    Args:
        names: Settings.
        count: Turns that count.
        measure: Function from a name and the turn to the measurement.
        warm_ups: Earlier turns, with numbers below 0, whose measurements are dropped.
        advance: Called after each measurement.
    """
    found: dict[K, list[V]] = {name: [] for name in names}
    for turn in range(-warm_ups, count):
        for name in turn_order(names, turn):
            measured = measure(name, turn)
            if turn >= 0:
                found[name].append(measured)
            advance()
    return found


def turn_order(names: Sequence[K], turn: int) -> list[K]:
    """Return the order of a turn: at random in every second turn, and the reverse of it in the next.

    So a drift of the machine, and what one setting leaves to the next, affect all names alike.
    """
    pair, is_second = divmod(turn, 2)
    order = random.Random(pair).sample(names, len(names))
    return order[::-1] if is_second else order


async def send_at_rate(send: Callable[[], Awaitable[object]], per_second: float, seconds: float) -> None:
    """Send evenly, whether or not responses arrive; return when all requests have ended."""

    async def act() -> None:
        await send()

    started = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(int(per_second * seconds)):
            await asyncio.sleep(max(0.0, started + number / per_second - time.monotonic()))
            group.create_task(act())


@asynccontextmanager
async def every(period_s: float, act: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Act periodically until the block ends, never if the period is 0; an act that has begun is completed."""
    is_over = asyncio.Event()

    async def repeat() -> None:
        while period_s and not is_over.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), period_s)
                return
            await act()

    task = asyncio.create_task(repeat())
    try:
        yield
    finally:
        is_over.set()
        await task


class Chunks(Protocol):
    """A streamed response; closing it cancels the rest."""

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    async def aclose(self) -> None: ...


Ask = Callable[[Sequence[int], int], Chunks]
"""Function from a prompt and a number of new tokens to the chunks of a response."""


def asker(client: AsyncClient, way: SpeculationParams, cache_salt: str = "") -> Ask:
    """Return a function that sends requests under one way of decoding."""

    def ask(prompt: Sequence[int], max_new_tokens: int) -> Chunks:
        return client.stream(prompt, max_new_tokens, speculation=way, cache_salt=cache_salt)

    return ask


@dataclass(frozen=True, slots=True)
class Level:
    """A number of concurrent requests.

    Attributes:
        concurrency: Clients; each sends one request after the other.
        settle_s: Seconds before the window, in which prefills end and clients fall out of step.
        measure_s: Length of the window in seconds.
        spread_s: Seconds in which the clients start one after the other, so that prefills do not coincide.
    """

    concurrency: int
    settle_s: float
    measure_s: float
    spread_s: float = 0.0


@dataclass(slots=True)
class Stream:
    """One response as it arrives.

    Attributes:
        started_s: Time of the request.
        arrivals: Times at which tokens arrived, each with their number.
        statistics: Statistics at the end; None if the response was cancelled.
    """

    started_s: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    statistics: Statistics | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """One setting at one level for some seconds.

    Attributes:
        tokens: Tokens that arrived in the window.
        seconds: Length of the window.
        firsts_s: Times to the first token, of responses whose first token arrived in the window.
        gaps: Seconds since the previous tokens, and the number of tokens that arrived then.
        completed: Responses that ended in the window.
        drafted: Draft tokens of these responses.
        rounds: Verifications of these responses.
    """

    setting: str
    concurrency: int
    repetition: int
    tokens: int
    seconds: float
    firsts_s: tuple[float, ...]
    gaps: tuple[tuple[float, int], ...]
    completed: int
    drafted: int
    rounds: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all clients together."""
        return self.tokens / self.seconds


async def run_window(
    ask: Ask, prompts: Iterator[Sequence[int]], level: Level
) -> tuple[list[Stream], float, float]:
    """Return all responses requested in one window, with the times at which it began and ended.

    Responses that still run at its end are cancelled. The first responses of the clients have different
    lengths, so that later some begin while others are half-way, as they would after a long time.

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
    raise AssertionError("clients run until they are stopped")


async def _follow(stream: Stream, chunks: Chunks) -> None:
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.tokens:
                stream.arrivals.append((time.perf_counter(), len(chunk.tokens)))
            stream.statistics = chunk.statistics


def cut_window(
    setting: str, concurrency: int, repetition: int, streams: Sequence[Stream], begin_s: float, end_s: float
) -> Window:
    """Return the part of the streams in the window from `begin_s` to just before `end_s`."""

    def is_inside(time_s: float) -> bool:
        return begin_s <= time_s < end_s

    answered = [stream for stream in streams if stream.arrivals]
    ended = [
        stream.statistics
        for stream in answered
        if stream.statistics is not None and is_inside(stream.arrivals[-1][0])
    ]
    firsts = ((stream.arrivals[0][0], stream.started_s) for stream in answered)
    return Window(
        setting=setting,
        concurrency=concurrency,
        repetition=repetition,
        tokens=sum(count for stream in answered for time_s, count in stream.arrivals if is_inside(time_s)),
        seconds=end_s - begin_s,
        firsts_s=tuple(_rounded(first_s - started_s) for first_s, started_s in firsts if is_inside(first_s)),
        gaps=tuple((gap_s, count) for time_s, gap_s, count in _gaps(answered) if is_inside(time_s)),
        completed=len(ended),
        drafted=sum(statistics.drafted for statistics in ended),
        rounds=sum(statistics.rounds for statistics in ended),
    )


def _gaps(streams: Iterable[Stream]) -> Iterator[tuple[float, float, int]]:
    """Yield (time of tokens, seconds since the previous ones, number of tokens)."""
    for stream in streams:
        for (before_s, _), (time_s, count) in itertools.pairwise(stream.arrivals):
            if count:
                yield time_s, _rounded(time_s - before_s), count


def _rounded(seconds: float) -> float:
    """Round to a hundredth of a millisecond."""
    return round(seconds, 5)
