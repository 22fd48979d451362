"""Run the requests of one HTTP request in parallel, until its client disconnects."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from fly.errors import DeadlineExceeded, InvalidRequest
from fly.request import GenerateRequest
from fly.response import Chunk
from router.generation.generation import Emit
from router.http.errors import renamed
from router.http.objects import Usage
from router.http.request_builder import HttpRequest
from router.service import GenerationService


@dataclass(slots=True)
class UsageCounter:
    """Number of tokens of one HTTP request so far."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def usage(self) -> Usage:
        return Usage.of(self.prompt_tokens, self.completion_tokens)


async def run_requests(
    service: GenerationService, http_request: HttpRequest, counter: UsageCounter, emit: Emit
) -> None:
    """Generate every choice of every prompt; if one fails, cancel the others.

    Args:
        service: Serves the requests.
        http_request: Requests to serve.
        counter: Counts their tokens.
        emit: Takes each chunk, with the choice's index among all of the HTTP request; one chunk at a time.

    Raises:
        InvalidRequest: With the fields named as in the body.
        DeadlineExceeded: The request's timeout has passed.
        FlyServeError: Error of the first request that failed.
    """
    turn, timeout_s = asyncio.Lock(), http_request.timeout_s

    async def serve(request: GenerateRequest, first: int) -> None:
        async def emit_in_turn(chunk: Chunk) -> None:
            async with turn:
                counter.prompt_tokens += chunk.prompt_tokens
                counter.completion_tokens += len(chunk.tokens)
                await emit(replace(chunk, choice_index=first + chunk.choice_index) if first else chunk)

        await service.serve(request, timeout_s, emit_in_turn, http_request.traceparent)

    try:
        async with asyncio.timeout(timeout_s) as limit:
            requests = enumerate(http_request.requests)
            await _all(serve(request, index * request.n) for index, request in requests)
    except InvalidRequest as error:
        raise renamed(error, http_request.names) from None
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded(f"the request's timeout of {timeout_s:g} s has passed") from None


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work; cancel it if the client disconnects before it is done.

    Args:
        receive: Reports when the client disconnects; the request's body has been read from it.
        work: Has always ended when this returns or raises.

    Raises:
        ClientDisconnect: The client has disconnected.
        Exception: Any error of the work.
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
    """Do all in parallel; if one fails or the call is cancelled, cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
