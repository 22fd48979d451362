"""Client side of a shared stream: one per channel, opened for the first of its sequences."""

import asyncio
import contextvars
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from flyserve.core.errors import FlyServeError, NotReady
from flyserve.wire.batches import BatchMethod, cancel_request, error_of
from services.common.shared_stream.mailbox import ENOUGH, Inbox, Outbox

_ENDED = (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError)
"""Errors of a write to a call that has ended, which its reader reports."""

_streams: dict[grpc.aio.Channel, "SharedStream"] = {}
"""The stream of each channel, while it takes new sequences; a channel leads to one service."""


def open_sequence(channel: grpc.aio.Channel, method: BatchMethod) -> "SequenceCall":
    """Return a new sequence in the channel's stream, which is opened if there is none."""
    if (stream := _streams.get(channel)) is None:
        retire = partial(_retire, channel)
        stream = _streams[channel] = SharedStream(method.begin(channel), method, retire)
    return stream.open()


def finish_sequences(channel: grpc.aio.Channel) -> None:
    """End the channel's stream with the last of its sequences; another sequence opens another stream."""
    if (stream := _streams.get(channel)) is not None:
        stream.finish()


def _retire(channel: grpc.aio.Channel, stream: "SharedStream") -> None:
    if _streams.get(channel) is stream:
        del _streams[channel]


class SequenceCall:
    """A client's end of one sequence."""

    def __init__(self, number: int, stream: "SharedStream") -> None:
        self.inbox = Inbox[Any]()
        self._number, self._stream = number, stream
        self._has_sent = False

    def send(self, request: Any) -> int:
        """Send a message and return its bytes; if the sequence has ended, `receive` raises the reason.

        Raises:
            InvalidRequest: The message is longer than gRPC allows.
        """
        request.sequence = self._number
        self._has_sent = True
        return self._stream.send(request)

    async def receive(self) -> Any:
        """Return the next message; None after the server's regular end.

        Raises:
            NotReady: The stream is broken, or the sequence was cancelled.
            FlyServeError: Any other error that the server returned.
        """
        return await self.inbox.get()

    def cancel(self) -> None:
        """End the sequence at both ends, if it has not ended; `receive` raises NotReady."""
        if not self.inbox.is_ended:
            self._stream.end(self._number, NotReady("the stream was cancelled"), self._has_sent)


class SharedStream:
    """A call with many sequences, until it breaks or its channel is closed."""

    def __init__(self, call: Any, method: BatchMethod, retire: Callable[["SharedStream"], object]) -> None:
        """Take over a call that has begun; `retire` is called when it takes no more sequences."""
        self._outbox = Outbox[Any](lambda requests: call.write(method.requests(requests)))
        self._call, self._method, self._retire = call, method, retire
        self._sequences: dict[int, SequenceCall] = {}
        self._numbers = count(1)
        self._is_finishing = False
        # NOTE: an empty context: the stream is not part of the request that opens it.
        spawn = partial(asyncio.create_task, context=contextvars.Context())
        self._writer, self._reader = spawn(self._write()), spawn(self._read())

    def open(self) -> SequenceCall:
        """Return a new sequence, which the server sees with its first message."""
        number = next(self._numbers)
        self._sequences[number] = sequence = SequenceCall(number, self)
        return sequence

    def send(self, request: Any) -> int:
        """Send a message of one sequence; return its bytes."""
        return self._outbox.put(request, len(self._sequences))

    def end(self, number: int, error: FlyServeError | None, must_cancel: bool = False) -> None:
        """End a sequence here, and at the server if it `must_cancel` it."""
        self._sequences.pop(number).inbox.end(error)
        if must_cancel:
            self._outbox.put(cancel_request(self._method, number))
        self._finish_if_idle()

    def finish(self) -> None:
        """Take no more sequences, and end with the last one."""
        self._retire(self)
        self._is_finishing = True
        self._finish_if_idle()

    def _finish_if_idle(self) -> None:
        if self._is_finishing and not self._sequences:
            self._outbox.close()

    async def _write(self) -> None:
        with suppress(*_ENDED):
            await self._outbox.sent()
            await self._call.done_writing()

    async def _read(self) -> None:
        """Hand each response to its sequence; at the end of the call end all of them."""
        make_error: Callable[[], FlyServeError] = partial(NotReady, "the connection was closed")
        try:
            while (batch := await self._call.read()) is not grpc.aio.EOF:
                if batch is None:  # by gRPC, where a message cannot be decoded
                    raise DecodeError
                for index, response in enumerate(batch.responses):
                    if index and index % ENOUGH == 0:
                        await asyncio.sleep(0)
                    self._receive(response)
            code = await self._call.code()
            make_error = partial(NotReady, f"the server ended the stream: {code.name}")
        except grpc.aio.AioRpcError as error:
            # NOTE: whatever it is, it is the fault of no sequence.
            make_error = partial(NotReady, error.details() or error.code().name)
        except DecodeError:
            make_error = partial(NotReady, "the server sent no message of this method")
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
        finally:
            self._call.cancel()
            self._writer.cancel()
            self._retire(self)
            for number in list(self._sequences):
                self.end(number, make_error())

    def _receive(self, response: Any) -> None:
        number = response.sequence
        # A sequence that was cancelled meanwhile has no place for it.
        if (sequence := self._sequences.get(number)) is None:
            return
        if response.HasField("end"):
            self.end(number, error_of(response))
        elif not sequence.inbox.put(response):
            self.end(number, NotReady("the server sent answers to no steps"), must_cancel=True)


def is_task_cancelled() -> bool:
    """Return True if the task was cancelled rather than its call."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
