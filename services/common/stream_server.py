"""The server's side of a sequence's stream: open, step by step, close; its state is always freed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar

from fly.errors import DeadlineExceeded, InvalidRequest
from fly.messages import Close, DraftStep, Open, Stale, VerifyStep
from fly.sequence import SequenceUpdate, StaleState

Step = TypeVar("Step", bound=VerifyStep | DraftStep, contravariant=True)
Answer = TypeVar("Answer", covariant=True)
Wire = TypeVar("Wire")

IDLE_TTL_S = 600.0
"""A stream that says nothing for so long is given up: the backstop behind the end of its connection."""


class SequenceSession(Protocol[Step, Answer]):
    """One sequence at a service."""

    async def step(self, step: Step) -> Answer:
        """Applies one step and answers; raises StaleState where the kept tokens are not known."""

    async def finish(self, last: SequenceUpdate) -> None:
        """Takes what the sequence came to, told at its close."""


async def serve_stream(
    requests: AsyncIterator[Wire],
    decode: Callable[[Wire], Open | Step | Close],
    open_session: Callable[[Open], AbstractAsyncContextManager[SequenceSession[Step, Answer]]],
    send: Callable[[Answer | Stale], Awaitable[None]],
    idle_ttl_s: float = IDLE_TTL_S,
) -> None:
    """Answers the steps of one stream, one at a time.

    Ends at `Close`, and as well at the stream's end without it: then the client is gone. Either way the
    session is left, which frees its state.

    Raises:
        InvalidRequest: The stream does not begin with an open, or opens twice.
        DeadlineExceeded: Nothing came for `idle_ttl_s`, or the deadline of its open has passed.
    """
    opening = await _next(requests, decode, idle_ttl_s)
    if opening is None or isinstance(opening, Close):
        return
    if not isinstance(opening, Open):
        raise InvalidRequest.of("kind", "is step, the first message must be open")
    # NOTE: a sequence opens with its first step: a client writes both at once, and a call that is rejected
    # between two writes would show the client a broken stream in place of the reason.
    message = await _next(requests, decode, idle_ttl_s)
    if message is None or isinstance(message, Close):
        return
    async with _ended_by(opening.deadline_ms), open_session(opening) as session:
        while message is not None and not isinstance(message, Close):
            if isinstance(message, Open):
                raise InvalidRequest.of("kind", "is open, but this stream is open already")
            await send(await _answer(session, message))
            message = await _next(requests, decode, idle_ttl_s)
        if isinstance(message, Close) and message.update is not None:
            await session.finish(message.update)


@asynccontextmanager
async def _ended_by(deadline_ms: int) -> AsyncIterator[None]:
    """The client ends its stream by then itself: this is for one that cannot."""
    try:
        async with asyncio.timeout(deadline_ms / 1000 or None) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded("the request's deadline has passed") from None


async def _answer(session: SequenceSession[Step, Answer], step: Step) -> Answer | Stale:
    try:
        return await session.step(step)
    except StaleState as stale:
        return Stale(step.update.step_id, stale.reason)


async def _next(
    requests: AsyncIterator[Wire], decode: Callable[[Wire], Open | Step | Close], idle_ttl_s: float
) -> Open | Step | Close | None:
    """The next message; None at the stream's end."""
    try:
        async with asyncio.timeout(idle_ttl_s):
            return decode(await anext(requests))
    except StopAsyncIteration:
        return None
    except TimeoutError:
        raise DeadlineExceeded(f"the stream was idle for {idle_ttl_s:g} s") from None
