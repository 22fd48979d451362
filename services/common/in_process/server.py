"""A server that only channels of its own process reach."""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Self

import grpc

from flyserve.core.errors import ConfigError
from services.common.in_process.call import OK, Call, Context, Status

logger = logging.getLogger(__name__)

SCHEME = "inprocess:"
_UNIMPLEMENTED = Status(grpc.StatusCode.UNIMPLEMENTED, "the server has no such method")
_STOPPED = Status(grpc.StatusCode.UNAVAILABLE, "the server has stopped")
_FAILED = Status(grpc.StatusCode.UNKNOWN, "the method has failed")

_servers: dict[str, "InProcessServer"] = {}
"""The servers of this process that accept calls, by address."""


def find_server(address: str) -> "InProcessServer | None":
    """Return the server that accepts calls at an address; None if there is none."""
    return _servers.get(address)


def is_in_process(address: str) -> bool:
    """Return True for the address of a server in this process, such as `inprocess:target-0`."""
    return address.startswith(SCHEME)


class InProcessServer:
    """A server for channels of the same process, by the part of `grpc.aio.Server` that a host uses."""

    def __init__(self, address: str, interceptor: grpc.aio.ServerInterceptor) -> None:
        """Prepare a server; `address` begins with `inprocess:`."""
        self._address, self._interceptor = address, interceptor
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._calls: dict[asyncio.Task[None], Call] = {}
        self.is_stopped = asyncio.Event()

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: the generic handlers have the same methods."""

    async def start(self) -> None:
        """Accept calls.

        Raises:
            ConfigError: Another server of this process has the address.
        """
        if self._address in _servers:
            raise ConfigError(f"address: {self._address} is in use")
        _servers[self._address] = self

    async def stop(self, grace_s: float | None) -> None:
        """Accept no more calls; end those that still run after `grace_s`."""
        if _servers.get(self._address) is self:
            del _servers[self._address]
        self.is_stopped.set()
        if self._calls and grace_s:
            await asyncio.wait(self._calls, timeout=grace_s)
        for call in list(self._calls.values()):
            call.give_up(_STOPPED)
        if self._calls:
            await asyncio.wait(self._calls)

    def begin(self, call: Call) -> None:
        """Serve a call in a task of its own, which is cancelled if the call is given up."""
        # NOTE: an empty context: the span and the request's id of the caller's task are not the server's.
        task = asyncio.create_task(self._serve(call), name=call.method, context=contextvars.Context())
        self._calls[task] = call
        task.add_done_callback(self._calls.pop)
        call.on_given_up = task.cancel

    async def _serve(self, call: Call) -> None:
        try:
            handler = await self._interceptor.intercept_service(self._find, _Details(call))
            if handler is None:
                call.end(_UNIMPLEMENTED)
            else:
                await _run(handler, call)
                call.end(OK)
        except grpc.aio.AbortError:
            pass
        except Exception:
            logger.exception("%s failed", call.method)
            call.end(_FAILED)

    async def _find(self, details: grpc.HandlerCallDetails) -> Any:
        found = (handler.service(details) for handler in self._handlers)
        return next((handler for handler in found if handler is not None), None)


class _Details(grpc.HandlerCallDetails):
    def __init__(self, call: Call) -> None:
        self.method, self.invocation_metadata = call.method, call.metadata


async def _run(handler: Any, call: Call) -> None:
    """Call the method of an interceptor's handler with the requests of a call, and send what it returns."""
    context = Context(call, handler.response_serializer)
    method = handler.stream_stream if handler.response_streaming else handler.stream_unary
    result = method(_Requests(call, handler.request_deserializer), context)
    if inspect.isasyncgen(result):
        async for response in result:
            await context.write(response)
    elif (response := await result) is not None:
        await context.write(response)


class _Requests:
    """The requests of a call, as its method iterates over them."""

    def __init__(self, call: Call, decode: Callable[[bytes], Any]) -> None:
        self._queue = call.requests
        self._decode = decode

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if (request := await self._queue.get()) is None:
            raise StopAsyncIteration
        return self._decode(request)
