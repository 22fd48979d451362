"""The choices of one request: decoded side by side, each with a seed of its own."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from fly.errors import DeadlineExceeded
from fly.response import Chunk
from router.generation.generation import Emit, Means, generate
from router.requests.deadline import Deadline
from router.requests.request import PreparedRequest
from services.common.alarm import Alarm


@contextmanager
def patient(emit: Emit, timeout_s: float) -> Iterator[Emit]:
    """The same while the block runs, but a client that takes a piece for longer than `timeout_s` is given up.

    Until then a slow one holds up nobody else, and costs its own place and what its connection buffers:
    a response goes on only as its pieces are taken.
    """
    alarm = Alarm(timeout_s)

    async def emit_in_time(chunk: Chunk) -> None:
        try:
            with alarm:
                await emit(chunk)
        except TimeoutError:
            raise DeadlineExceeded(f"the client took nothing for {timeout_s:g} s") from None

    try:
        yield emit_in_time
    finally:
        alarm.close()


def in_turn(emit: Emit) -> Emit:
    """The same, one piece at a time; after one that was not taken none: who waits then, waits for its end.

    NOTE: a write that was given up may still be under way, and gRPC takes no second one beside it.
    """
    turn = asyncio.Lock()

    async def emit_in_turn(chunk: Chunk) -> None:
        await turn.acquire()
        await emit(chunk)
        turn.release()

    return emit_in_turn


async def generate_choices(
    means: Means, request: PreparedRequest, started: float, deadline: Deadline, emit: Emit
) -> None:
    """Makes all choices of a request; when one fails, or the call is cancelled, none goes on.

    Args:
        means: What requests share.
        request: What to make.
        started: Clock reading when the request came.
        deadline: When nobody wants it any more.
        emit: Takes each chunk as it is decided; chunks of several choices come one after the other.

    Raises:
        FlyServeError: What the first choice that failed says.
    """
    emit = in_turn(emit)

    async def make(index: int, choice: PreparedRequest) -> None:
        await generate(means, choice, index, started, deadline, emit)

    tasks = [asyncio.create_task(make(index, choice)) for index, choice in request.unfinished().items()]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
