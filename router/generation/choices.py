"""The choices of one request: decoded side by side, each with a seed of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from fly.errors import DeadlineExceeded
from router.generation.generation import Means, generate
from router.generation.response import Piece
from router.generation.step_timeout import StepTimeout
from router.requests.deadline import Deadline
from router.requests.request import PreparedRequest

EmitOfChoice = Callable[[int, Piece], Awaitable[None]]
"""Takes a piece of the choice with this index; pieces of several choices come one after the other."""


@contextmanager
def patient(emit: EmitOfChoice, timeout_s: float) -> Iterator[EmitOfChoice]:
    """The same while the block runs, but a client that takes a piece for longer than `timeout_s` is given up.

    Until then a slow one holds up nobody else, and costs its own place and what its connection buffers:
    a response goes on only as its pieces are taken.
    """
    step_timeout = StepTimeout(timeout_s)

    async def emit_in_time(index: int, piece: Piece) -> None:
        try:
            with step_timeout:
                await emit(index, piece)
        except TimeoutError:
            raise DeadlineExceeded(f"the client took nothing for {timeout_s:g} s") from None

    try:
        yield emit_in_time
    finally:
        step_timeout.close()


def in_turn(emit: EmitOfChoice) -> EmitOfChoice:
    """The same, one piece at a time; after one that was not taken none: who waits then, waits for its end.

    NOTE: a write that was given up may still be under way, and gRPC takes no second one beside it.
    """
    turn = asyncio.Lock()

    async def emit_in_turn(index: int, piece: Piece) -> None:
        await turn.acquire()
        await emit(index, piece)
        turn.release()

    return emit_in_turn


async def generate_choices(
    means: Means, request: PreparedRequest, started: float, deadline: Deadline, emit: EmitOfChoice
) -> None:
    """Makes all choices of a request; when one fails, or the call is cancelled, none goes on.

    Args:
        means: What requests share.
        request: What to make.
        started: Clock reading when the request came.
        deadline: When nobody wants it any more.
        emit: Takes each piece as it is decided.

    Raises:
        FlyServeError: What the first choice that failed says.
    """
    emit = in_turn(emit)

    async def make(index: int, choice: PreparedRequest) -> None:
        await generate(means, choice, started, deadline, partial(emit, index))

    tasks = [asyncio.create_task(make(index, choice)) for index, choice in request.unfinished().items()]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
