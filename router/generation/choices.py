"""The choices of one request: decoded concurrently, each with its own seed."""

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flyserve.core.errors import DeadlineExceeded
from flyserve.core.response import Chunk
from router.admission.slots import Slots
from router.generation.context import RouterContext
from router.generation.generation import Emit, generate
from router.generation.prompt_scoring import score_prompt
from router.generation.step_timeout import StepTimeout
from router.requests.request import Deadline, PreparedRequest


@contextmanager
def with_write_timeout(emit: Emit, timeout_s: float) -> Iterator[Emit]:
    """Within the block, cancel a request whose client does not receive a chunk within `timeout_s`.

    Until then a slow client delays no other request. It costs its own slot and what its connection buffers,
    because a response continues only when its last chunk has been received.
    """
    step_timeout = StepTimeout(timeout_s)

    async def emit_in_time(chunk: Chunk) -> None:
        try:
            with step_timeout:
                await emit(chunk)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the client received nothing for {timeout_s:g} s (router.write_timeout_s)"
            ) from None

    try:
        yield emit_in_time
    finally:
        step_timeout.close()


def serialized(emit: Emit) -> Emit:
    """Send one chunk at a time, and none after a chunk whose write failed.

    NOTE: a write that timed out may still be in progress, and gRPC allows only one write at a time.
    """
    turn = asyncio.Lock()

    async def emit_serialized(chunk: Chunk) -> None:
        await turn.acquire()
        await emit(chunk)
        turn.release()

    return emit_serialized


async def generate_choices(
    context: RouterContext,
    request: PreparedRequest,
    started: float,
    deadline: Deadline,
    slots: Slots,
    emit: Emit,
) -> None:
    """Generate all choices of a request; if one fails or the call is cancelled, all are cancelled.

    `started` is the clock reading at the arrival of the request. Each choice uses one of
    the `slots`. `emit` gets each chunk as it is decided, and chunks of several
    choices one at a time. Raise the error of the first choice that failed.
    """
    emit, choices = serialized(emit), request.unfinished()
    # NOTE: a client that resumes a response has received its prompt before any token.
    if request.prompt_logprobs is not None and not request.resumed:
        prompt = await score_prompt(context, choices[0], deadline, slots.exchange)
        await emit(Chunk(text="", prompt=prompt))

    async def make(index: int, choice: PreparedRequest) -> None:
        async with slots.slot() as slot:
            await generate(context, choice, index, started, deadline, slot.acquire, emit)

    await run_all(make(index, choice) for index, choice in choices.items())


async def run_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all in parallel; if one fails or the call is cancelled, cancel the others. One needs no task."""
    everything = list(works)
    if len(everything) == 1:
        await everything[0]
        return
    tasks = [asyncio.create_task(work) for work in everything]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            # NOTE: the first that ends by a cancellation ends `gather`; a second one would break off the
            # clean-up of the others, whose streams would stay open.
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
