"""The choices of one request: decoded concurrently, each with its own seed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from fly.errors import DeadlineExceeded
from router.generation.generation import RouterContext, generate
from router.generation.response import Piece
from router.generation.step_timeout import StepTimeout
from router.requests.deadline import Deadline
from router.requests.request import PreparedRequest

EmitOfChoice = Callable[[int, Piece], Awaitable[None]]
"""Send a piece of the choice with this index; pieces of several choices are sent one at a time."""


@contextmanager
def with_write_timeout(emit: EmitOfChoice, timeout_s: float) -> Iterator[EmitOfChoice]:
    """Within the block, cancel a request whose client does not receive a piece within `timeout_s`.

    Until then a slow client delays no other request. It costs its own slot and what its connection buffers,
    because a response continues only when its last piece has been received.
    """
    step_timeout = StepTimeout(timeout_s)

    async def emit_in_time(index: int, piece: Piece) -> None:
        try:
            with step_timeout:
                await emit(index, piece)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the client received nothing for {timeout_s:g} s (router.write_timeout_s)"
            ) from None

    try:
        yield emit_in_time
    finally:
        step_timeout.close()


def serialized(emit: EmitOfChoice) -> EmitOfChoice:
    """Send one piece at a time, and none after a piece whose write failed.

    NOTE: a write that timed out may still be in progress, and gRPC allows only one write at a time.
    """
    turn = asyncio.Lock()

    async def emit_serialized(index: int, piece: Piece) -> None:
        await turn.acquire()
        await emit(index, piece)
        turn.release()

    return emit_serialized


async def generate_choices(
    context: RouterContext, request: PreparedRequest, started: float, deadline: Deadline, emit: EmitOfChoice
) -> None:
    """Generate all choices of a request; if one fails or the call is cancelled, all are cancelled.

    Args:
        context: State shared by all requests.
        request: The checked request.
        started: Clock reading at the arrival of the request.
        deadline: Time after which the result is not needed.
        emit: Sends each piece as it is decided.

    Raises:
        FlyServeError: The error of the first choice that failed.
    """
    emit = serialized(emit)

    async def make(index: int, choice: PreparedRequest) -> None:
        await generate(context, choice, started, deadline, partial(emit, index))

    tasks = [asyncio.create_task(make(index, choice)) for index, choice in request.unfinished().items()]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
