"""Server side of a sequence's stream: open, steps, close; the state of the sequence is always freed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

from flyserve.core.errors import DeadlineExceeded, InvalidRequest, NotReady
from flyserve.core.limits import MOST_TIMEOUT_S
from flyserve.core.messages import Close, DraftStep, Extend, Open, Stale, VerifyStep
from flyserve.core.sequence import SequenceUpdate, StaleState
from flyserve.wire.streams import opening_from_wire

Step = TypeVar("Step", bound=VerifyStep | Extend | DraftStep, contravariant=True)
Answer = TypeVar("Answer", covariant=True)

IDLE_TTL_S = 600.0
"""A stream without a message for this long is ended, in case the end of its connection goes unnoticed."""


class SequenceSession(Protocol[Step, Answer]):
    """The state of one sequence at a service."""

    async def step(self, step: Step) -> Answer:
        """Apply the update of one step and return the answer to it.

        Raises:
            StaleState: The update keeps tokens that this session does not hold.
            InvalidRequest: A field breaks a limit.
        """

    async def finish(self, last: SequenceUpdate) -> None:
        """Apply the final update of the sequence, sent at its close."""


async def serve_stream(
    requests: AsyncIterator[Any],
    decode: Callable[[Any], Open | Step | Close],
    open_session: Callable[[Open], AbstractAsyncContextManager[SequenceSession[Step, Answer]]],
    send: Callable[[Answer | Stale], Awaitable[None]],
) -> None:
    """Answer the steps of one stream, one at a time; its first message has the open.

    Return at `Close`, or at the end of a stream without it, after the client was lost. Either way the session
    is exited, which frees its state.

    Raises:
        InvalidRequest: The first message has no open, its deadline is above one day, or there is a second
            open.
        NotReady: No message came for `IDLE_TTL_S`.
        DeadlineExceeded: The deadline in its open has passed.
    """
    if (first := await _next(requests)) is None:
        return
    opening, decoded = opening_from_wire(first), decode(first)
    # NOTE: the session opens only at the first step, which may follow in a message of its own: a sequence
    # without a step takes no place.
    message = await _following(requests, decode) if isinstance(decoded, Open) else decoded
    if message is None or isinstance(message, Close):
        return
    async with _with_deadline(opening.deadline_ms), open_session(opening) as session:
        while message is not None and not isinstance(message, Close):
            await send(await _answer(session, message))
            message = await _following(requests, decode)
        if isinstance(message, Close) and message.update is not None:
            await session.finish(message.update)


@asynccontextmanager
async def _with_deadline(deadline_ms: int) -> AsyncIterator[None]:
    """Enforce the deadline at the server, in case the client cannot end its stream by then."""
    if deadline_ms > (most_ms := int(MOST_TIMEOUT_S * 1000)):
        raise InvalidRequest.of("deadline_ms", f"is {deadline_ms}, must be at most {most_ms} (one day)")
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


async def _following(
    requests: AsyncIterator[Any], decode: Callable[[Any], Open | Step | Close]
) -> Step | Close | None:
    """Return a message after the first one; None at the stream's end."""
    if (wire := await _next(requests)) is None:
        return None
    if wire.HasField("open"):
        raise InvalidRequest.of("open", "is set, but this stream is open already")
    message = decode(wire)
    assert not isinstance(message, Open)
    return message


async def _next(requests: AsyncIterator[Any]) -> Any:
    """Return the next message as it came; None at the stream's end."""
    try:
        async with asyncio.timeout(IDLE_TTL_S):
            return await anext(requests)
    except StopAsyncIteration:
        return None
    except TimeoutError:
        # NOTE: not DeadlineExceeded: the request may go on, at a stream that its client opens again.
        raise NotReady(f"the stream was idle for {IDLE_TTL_S:g} s") from None
