"""Server side of shared streams: a task for each sequence; the end of one leaves the others alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from flyserve.core.errors import FlyServeError, InvalidRequest, NotReady, Overloaded
from flyserve.wire.batches import BatchMethod, end_response
from services.common.shared_stream.mailbox import MOST_MESSAGES, Inbox, Outbox

_MOST_SEQUENCES = 10_000
"""Open sequences of one client. An engine limits those that it holds; this bounds what waits before it."""

Write = Callable[[Any], Coroutine[Any, Any, object]]
Send = Callable[[Any], Awaitable[None]]
ServeSequence = Callable[[AsyncIterator[Any], Send], Awaitable[None]]
"""Serve one sequence from its requests; what it raises is sent to the client as the end of the sequence."""


class SharedStreams:
    """The shared streams of one service."""

    def __init__(self, method: BatchMethod, serve_sequence: ServeSequence) -> None:
        """Serve each sequence by `serve_sequence`, which is cancelled when the client is lost or cancels."""
        self._method, self._serve_sequence = method, serve_sequence
        self._streams: set[_Stream] = set()
        self._is_draining = False

    async def serve(self, requests: AsyncIterator[Any], context: Any) -> None:
        """Serve the sequences of one call, until its client ends it.

        Raises:
            InvalidRequest: A batch cannot be decoded, or has too many messages.
        """
        stream = _Stream(self._method, self._serve_sequence, context.write)
        self._streams.add(stream)
        try:
            await stream.run(requests, self._is_draining)
        finally:
            self._streams.discard(stream)

    def drain(self) -> None:
        """Take no new sequences; each stream ends with the last of its sequences."""
        self._is_draining = True
        for stream in self._streams:
            stream.drain()


class _Stream:
    """One call, and its open sequences by their numbers."""

    def __init__(self, method: BatchMethod, serve_sequence: ServeSequence, write: Write) -> None:
        self._method, self._serve_sequence = method, serve_sequence
        self._outbox = Outbox[Any](lambda responses: write(method.responses(responses)))
        self._inboxes: dict[int, Inbox[Any]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._is_draining = False

    async def run(self, requests: AsyncIterator[Any], is_draining: bool) -> None:
        """Serve until the client sends no more, or the last sequence of a draining stream has ended."""
        self._reader = reader = asyncio.create_task(self._read(requests))
        writer = asyncio.create_task(self._outbox.sent())
        if is_draining:
            self.drain()
        try:
            done, _ = await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
            for inbox in self._inboxes.values():
                inbox.end()
            if self._tasks:
                await asyncio.wait(self._tasks.values())
            self._outbox.close()
            await writer
        finally:
            tasks = (reader, writer, *self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def drain(self) -> None:
        """Take no new sequences; end with the last one."""
        self._is_draining = True
        self._end_if_drained()

    def _end_if_drained(self) -> None:
        if self._is_draining and not self._tasks and self._reader is not None:
            self._reader.cancel()

    async def _read(self, requests: AsyncIterator[Any]) -> None:
        """Hand each request to its sequence; read no more while the client does not read."""
        async for batch in requests:
            if (found := len(batch.requests)) > MOST_MESSAGES:
                raise InvalidRequest.of("requests", f"has {found} messages, at most {MOST_MESSAGES}")
            for request in batch.requests:
                self._receive(request.sequence, request)
            await self._outbox.room()

    def _receive(self, number: int, request: Any) -> None:
        inbox = self._inboxes.get(number)
        if request.HasField("cancel"):
            if inbox is not None:
                self._tasks[number].cancel()
        elif inbox is not None:
            if not inbox.put(request):
                inbox.end(InvalidRequest.of("step", "arrived before the answers to the steps before it"))
        elif (fault := self._fault(request)) is not None:
            self._outbox.put(end_response(self._method, number, fault))
        else:
            self._begin(number, request)

    def _fault(self, request: Any) -> FlyServeError | None:
        """Return why a request cannot begin a sequence; None if it can."""
        if not request.HasField("open"):
            return InvalidRequest.of("open", "is missing: the first message of a sequence must have it")
        if self._is_draining:
            return NotReady("the service ends: it takes no new sequences")
        if len(self._tasks) >= _MOST_SEQUENCES:
            return Overloaded(f"this client has {_MOST_SEQUENCES} open sequences, which are the most")
        return None

    def _begin(self, number: int, request: Any) -> None:
        self._inboxes[number] = inbox = Inbox[Any]()
        inbox.put(request)
        self._tasks[number] = task = asyncio.create_task(self._serve(number, inbox))
        task.add_done_callback(partial(self._forget, number))

    def _forget(self, number: int, task: asyncio.Task[None]) -> None:
        del self._inboxes[number], self._tasks[number]
        self._end_if_drained()

    async def _serve(self, number: int, inbox: Inbox[Any]) -> None:
        """Serve one sequence, and send its end."""
        error: Exception | None = None
        try:
            await self._serve_sequence(inbox, partial(self._send, number))
        except Exception as caught:
            error = caught
        self._outbox.put(end_response(self._method, number, error), len(self._tasks))

    async def _send(self, number: int, response: Any) -> None:
        response.sequence = number
        self._outbox.put(response, len(self._tasks))
        await self._outbox.room()
