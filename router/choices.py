"""The choices of one request: decoded side by side, each with a seed of its own."""

import asyncio
from collections.abc import Awaitable, Callable

from router.deadline import Deadline
from router.generation import Means, generate
from router.request import PreparedRequest
from router.response import Piece

EmitOfChoice = Callable[[int, Piece], Awaitable[None]]
"""Takes a piece of the choice with this index; pieces of several choices come one after the other."""


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
    turn = asyncio.Lock()

    async def make(index: int, choice: PreparedRequest) -> None:
        async def emit_in_turn(piece: Piece) -> None:
            async with turn:
                await emit(index, piece)

        await generate(means, choice, started, deadline, emit_in_turn)

    tasks = [asyncio.create_task(make(index, choice)) for index, choice in request.unfinished().items()]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
