"""Runs the requests of one order side by side, for as long as its client is there."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from fly.errors import DeadlineExceeded, InvalidRequest
from router.generation.choices import EmitOfChoice
from router.generation.response import Header, Piece
from router.http.dialect import Order
from router.http.errors import renamed
from router.http.objects import Usage
from router.requests.request import GenerateRequest
from router.service import GenerationService


@dataclass(slots=True)
class Tally:
    """Tokens of one order so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def usage(self) -> Usage:
        return Usage.of(self.prompt_tokens, self.completion_tokens)


async def run_order(service: GenerationService, order: Order, tally: Tally, emit: EmitOfChoice) -> None:
    """Makes every choice of every prompt; when one fails, none goes on.

    Args:
        service: Serves the requests.
        order: What to make.
        tally: Counts its tokens.
        emit: Takes each piece, with the choice's index among all of the order; one piece at a time.

    Raises:
        InvalidRequest: With the fields named as the order's body names them.
        DeadlineExceeded: The order's time is over.
        FlyServeError: What the first request that failed says.
    """
    turn = asyncio.Lock()

    async def serve(request: GenerateRequest, first: int) -> None:
        async def emit_in_turn(index: int, piece: Piece) -> None:
            async with turn:
                tally.completion_tokens += len(piece.tokens)
                await emit(first + index, piece)

        def make_emit(header: Header) -> EmitOfChoice:
            tally.prompt_tokens += header.prompt_tokens
            return emit_in_turn

        await service.serve(request, order.timeout_s, make_emit, order.traceparent)

    try:
        async with asyncio.timeout(order.timeout_s) as limit:
            await _all(serve(request, index * request.n) for index, request in enumerate(order.requests))
    except InvalidRequest as error:
        raise renamed(error, order.names) from None
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded(f"the request's timeout of {order.timeout_s:g} s has passed") from None


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Does the work; when the client leaves before it is done, the work is cancelled.

    Args:
        receive: Tells when the client leaves; the request's body has been read from it.
        work: Has ended when this returns or raises, however that comes.

    Raises:
        ClientDisconnect: The client has left.
        Exception: What the work raises.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        working.result()
    finally:
        await _end((working, leaving))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Does all at once; when one fails, or the call is cancelled, none goes on."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
