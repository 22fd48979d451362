"""One call within a process: the client's end, and the context that the server's method gets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Status:
    """The end of a call, as gRPC's status and trailing metadata."""

    code: grpc.StatusCode
    details: str = ""
    trailing_metadata: Metadata = ()

    def error(self) -> grpc.aio.AioRpcError:
        """Return it as the exception that gRPC's clients raise."""
        return grpc.aio.AioRpcError(
            self.code, grpc.aio.Metadata(), grpc.aio.Metadata(*self.trailing_metadata), self.details
        )


OK = Status(grpc.StatusCode.OK)
CANCELLED = Status(grpc.StatusCode.CANCELLED, "the client cancelled the call")
EXPIRED = Status(grpc.StatusCode.DEADLINE_EXCEEDED, "the call's deadline has passed")


class Call:
    """The client's end of a call; it begins at once, and ends with the first status that is set.

    Messages cross as bytes, as over a socket: neither side can change what the other one holds.

    Attributes:
        requests: Requests that the server has not read; None at their end.
        on_given_up: Called when somebody else than the server ends the call.
    """

    def __init__(
        self,
        method: str,
        metadata: Metadata | None,
        timeout_s: float | None,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
    ) -> None:
        """Prepare a call; `encode` and `decode` convert its requests and responses."""
        loop = asyncio.get_running_loop()
        self.method = method
        self.metadata = tuple(metadata or ())
        self.requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.on_given_up: Callable[[], object] = lambda: None
        self._responses: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._encode, self._decode = encode, decode
        self._status: asyncio.Future[Status] = loop.create_future()
        self._is_half_closed = False
        self._deadline_s = None if timeout_s is None else loop.time() + timeout_s
        self._expiry = None if timeout_s is None else loop.call_later(timeout_s, self.give_up, EXPIRED)

    def respond(self, response: bytes) -> None:
        """Queue a response for the client, unless the call has ended."""
        if not self.done():
            self._responses.put_nowait(response)

    def end(self, status: Status) -> bool:
        """Set the status; return False if the call has one already."""
        if self.done():
            return False
        self._status.set_result(status)
        self._responses.put_nowait(None)
        if self._expiry is not None:
            self._expiry.cancel()
        return True

    def give_up(self, status: Status) -> bool:
        """End the call before its method has ended, which is cancelled; return False if it has ended."""
        if has_ended := self.end(status):
            self.on_given_up()
        return has_ended

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` soon after the end, whoever ends the call."""
        self._status.add_done_callback(lambda _: callback())

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline; None without one."""
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - asyncio.get_running_loop().time())

    def done(self) -> bool:
        """Return True once the call has ended."""
        return self._status.done()

    def cancel(self) -> bool:
        """End the call; return False if it has ended already."""
        return self.give_up(CANCELLED)

    async def code(self) -> grpc.StatusCode:
        """Wait for the end of the call and return its code."""
        return (await asyncio.shield(self._status)).code

    async def details(self) -> str:
        """Wait for the end of the call and return the message of its status."""
        return (await asyncio.shield(self._status)).details

    async def write(self, request: Any) -> None:
        """Send a request; raise InvalidStateError if the call has ended, or its requests have."""
        if self.done() or self._is_half_closed:
            raise asyncio.InvalidStateError("the call takes no more requests")
        self.requests.put_nowait(self._encode(request))

    async def done_writing(self) -> None:
        """End the requests."""
        if not self._is_half_closed:
            self._is_half_closed = True
            self.requests.put_nowait(None)

    async def read(self) -> Any:
        """Return the next response, or EOF at a regular end; raise what ended the call otherwise.

        NOTE: as in gRPC, a read that is cancelled cancels its call.
        """
        try:
            response = None if self._has_ended_for_client else await self._responses.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if response is not None:
            return self._decode(response)
        self._raise_for_status()
        return grpc.aio.EOF

    @property
    def _has_ended_for_client(self) -> bool:
        """True if every response was read, or the client itself gave up the call."""
        status = self._status.result() if self.done() else None
        return status is not None and (status is CANCELLED or self._responses.empty())

    def _raise_for_status(self) -> None:
        status = self._status.result()
        if status is CANCELLED:
            raise asyncio.CancelledError
        if status is not OK:
            raise status.error()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Any]:
        while (response := await self.read()) is not grpc.aio.EOF:
            yield response

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the end of a call with one response, and return that."""
        return self._only_response().__await__()

    async def _only_response(self) -> Any:
        response = await self.read()
        await self.read()
        return response


class Context:
    """The server's view of a call, with what FlyServe's methods use of `grpc.aio.ServicerContext`."""

    def __init__(self, call: Call, encode: Callable[[Any], bytes]) -> None:
        """Serve this call; `encode` converts its responses."""
        self._call, self._encode = call, encode
        self._trailing: Metadata = ()

    def invocation_metadata(self) -> Metadata:
        return self._call.metadata

    def time_remaining(self) -> float | None:
        return self._call.time_remaining()

    def auth_context(self) -> dict[str, Sequence[bytes]]:
        return {}

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Do nothing: no client of ours reads it."""

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._trailing = metadata

    async def read(self) -> Any:
        """Return the next request, not decoded; EOF after the last one."""
        request = await self._call.requests.get()
        return grpc.aio.EOF if request is None else request

    async def write(self, response: Any) -> None:
        self._call.respond(self._encode(response))

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()
    ) -> NoReturn:
        """End the call with an error; raise, so that the method ends as well."""
        self._call.end(Status(code, details, trailing_metadata or self._trailing))
        raise grpc.aio.AbortError
