"""Messages between a stream and its sequences: an inbox for each sequence, one outbox for all."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

from flyserve.core.errors import InvalidRequest

MOST_MESSAGE_BYTES = 4 * 1024 * 1024 - 64
"""Longest message of a sequence: gRPC ends a stream, and so all its sequences, at one of more than 4 MiB."""
MOST_MESSAGES = 1024
"""Most messages that are sent together; a receiver does not read a batch of more."""
ENOUGH = 8
"""Messages that are handled or sent at once: the peer works on them while the next ones are made."""
_BATCH_BYTES = 256 * 1024
"""Size from which no more messages join a batch, so that long prompts do not hold up short steps."""
_WAITING_BYTES = 4 * 1024 * 1024
"""Size of the messages that may wait for a slow receiver; more are made only when it has read."""
_MOST_UNREAD = 16
"""Messages of a sequence that may wait to be read: a peer sends a step only after the last one's answer."""


class Message(Protocol):
    """A protobuf message."""

    def ByteSize(self) -> int:
        """Return the length of its serialized form."""


M = TypeVar("M", bound=Message)


class Inbox(Generic[M]):
    """The messages of one sequence that were not read yet; iteration stops at its regular end.

    Attributes:
        is_ended: No message follows.
    """

    def __init__(self) -> None:
        self.is_ended = False
        self._messages: deque[M] = deque()
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, message: M) -> bool:
        """Add a message, unless the inbox has ended; return False if too many are unread."""
        if len(self._messages) >= _MOST_UNREAD:
            return False
        if not self.is_ended:
            self._messages.append(message)
            self._wake()
        return True

    def end(self, error: Exception | None = None) -> None:
        """End the inbox; `get` raises the error after the last message. The first end counts."""
        if not self.is_ended:
            self.is_ended, self._error = True, error
            self._wake()

    async def get(self) -> M | None:
        """Return the next message, None after a regular end; raise the error that has ended the inbox."""
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self.is_ended:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._messages.popleft()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> M:
        if (message := await self.get()) is None:
            raise StopAsyncIteration
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Outbox(Generic[M]):
    """Messages of many sequences on their way into one stream: those that are ready leave together."""

    def __init__(self, write: Callable[[list[M]], Coroutine[Any, Any, object]]) -> None:
        """`write` sends a batch, and returns when the next one may follow."""
        self._write = write
        self._waiting: deque[tuple[M, int]] = deque()
        self._num_bytes = 0
        self._is_closed = self._is_writing = False
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def put(self, message: M, num_senders: int = ENOUGH) -> int:
        """Add a message; return its bytes.

        It leaves as soon as `ENOUGH` messages wait, or one of each of the `num_senders`; at the latest in the
        next turn of the event loop, but not before the end of the write that is under way.

        Raises:
            InvalidRequest: The message is longer than gRPC allows.
        """
        num_bytes = message.ByteSize()
        if num_bytes > MOST_MESSAGE_BYTES:
            raise InvalidRequest.of(
                "message",
                f"has {num_bytes} bytes, at most {MOST_MESSAGE_BYTES} fit into a step: shorten the prompt,"
                " its grammar, or the lists of log-probabilities",
            )
        self._waiting.append((message, num_bytes))
        self._num_bytes += num_bytes
        if self._num_bytes > _WAITING_BYTES:
            self._has_room.clear()
        if not self._is_writing:
            if len(self._waiting) >= min(num_senders, ENOUGH):
                self._run()
            elif len(self._waiting) == 1:
                self._loop.call_soon(self._flush)
        return num_bytes

    async def room(self) -> None:
        """Return at once unless the receiver is slow, in that case when it has read enough."""
        if self._num_bytes > _WAITING_BYTES:
            await self._has_room.wait()

    def close(self) -> None:
        """Take no more messages; `sent` returns as soon as all are sent."""
        self._is_closed = True
        self._flush()

    async def sent(self) -> None:
        """Return when the outbox is closed and all its messages are sent; raise the error of a write."""
        await self._end

    def _flush(self) -> None:
        if not self._is_writing:
            self._run()

    def _run(self, writing: Coroutine[Any, Any, object] | None = None, _: object = None) -> None:
        """Continue a write, then write what waits, until a write must wait itself: its future calls this.

        NOTE: not a task, which would begin a write only in the next turn of the event loop.
        """
        self._is_writing = True
        try:
            while writing is not None or (self._waiting and not self._end.done()):
                writing = writing or self._write(self._next_batch())
                with suppress(StopIteration):
                    writing.send(None).add_done_callback(partial(self._run, writing))
                    return
                writing = None
        except asyncio.CancelledError:
            self._end.cancel()
        except Exception as error:
            if not self._end.done():
                self._end.set_exception(error)
        self._is_writing = False
        if self._is_closed and not self._end.done():
            self._end.set_result(None)

    def _next_batch(self) -> list[M]:
        """Return the first messages that fit together; one that is longer leaves alone."""
        batch: list[M] = []
        size = 0
        while self._waiting and len(batch) < MOST_MESSAGES:
            message, num_bytes = self._waiting[0]
            if batch and size + num_bytes > _BATCH_BYTES:
                break
            self._waiting.popleft()
            batch.append(message)
            size += num_bytes
        self._num_bytes -= size
        if self._num_bytes <= _WAITING_BYTES:
            self._has_room.set()
        return batch
