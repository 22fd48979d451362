"""A client of a target that speaks the wire by hand, to say what ours never says."""

from collections import deque
from typing import Any

import grpc
from google.rpc import status_pb2

from flyserve.v1 import target_pb2
from flyserve.v1.target_pb2_grpc import TargetStub
from flyserve.wire.status import CODES


class RawStream:
    """A stream with sequences of any numbers.

    Attributes:
        call: gRPC's call.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call: Any = TargetStub(channel).VerifyBatches()
        self._unread: deque[target_pb2.VerifyResponse] = deque()

    async def send(self, *numbered: tuple[int, target_pb2.VerifyRequest]) -> None:
        """Send messages, each with the number of its sequence, in one batch."""
        batch = target_pb2.VerifyRequests()
        for number, request in numbered:
            batch.requests.add().CopyFrom(request)
            batch.requests[-1].sequence = number
        await self.call.write(batch)

    async def receive(self) -> Any:
        """Return the next response of any sequence; EOF at the end of the stream."""
        while not self._unread:
            if (batch := await self.call.read()) is grpc.aio.EOF:
                return grpc.aio.EOF
            self._unread.extend(batch.responses)
        return self._unread.popleft()


class RawSequence(RawStream):
    """One sequence in a stream of its own, with the interface of a call of gRPC."""

    async def write(self, request: target_pb2.VerifyRequest) -> None:
        """Send a message."""
        await self.send((1, request))

    async def read(self) -> Any:
        """Return the next response; EOF at the regular end of the sequence, else raise its error."""
        response = await self.receive()
        if response is grpc.aio.EOF or not response.HasField("end"):
            return response
        assert response.sequence == 1
        status = status_pb2.Status.FromString(response.end.status)
        if not status.code:
            return grpc.aio.EOF
        code, none = CODES[status.code], grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(code, none, none, status.message)

    def cancel(self) -> None:
        """Cancel the call."""
        self.call.cancel()

    async def error(self) -> grpc.aio.AioRpcError:
        """Read until the sequence ends with an error; return it."""
        try:
            while await self.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError("the sequence ended without an error")
