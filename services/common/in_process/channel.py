"""A channel to a server of the same process."""

import asyncio
from collections.abc import Callable
from functools import partial, partialmethod
from typing import Any, Self

import grpc

from services.common.in_process.call import Call, Metadata, Status
from services.common.in_process.server import find_server

_READY, _LOST = grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE


class InProcessChannel(grpc.aio.Channel):
    """A channel to a server of the same process; it connects when it is opened, and never again."""

    def __init__(self, address: str) -> None:
        """Connect to `address`, if a server has it."""
        self._address = address
        self._server = find_server(address)
        self._is_closed = False
        self._calls: set[Call] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """End the channel; calls have `grace` seconds to finish."""
        self._is_closed = True
        if self._calls and grace:
            await asyncio.wait([asyncio.ensure_future(call.code()) for call in self._calls], timeout=grace)
        for call in list(self._calls):
            call.cancel()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        if self._is_closed:
            return grpc.ChannelConnectivity.SHUTDOWN
        is_lost = self._server is None or self._server.is_stopped.is_set()
        return _LOST if is_lost else _READY

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        if self._server is not None and self.get_state() is last_observed_state:
            await self._server.is_stopped.wait()

    async def channel_ready(self) -> None:
        """Return at once: there is nothing to wait for."""

    def _method(
        self,
        is_stream: bool,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **options: Any,
    ) -> Callable[..., Call]:
        """Return a function that begins a call; `options` are those of a connection, which there is not."""

        def begin(
            request: Any = None, *, timeout: float | None = None, metadata: Metadata | None = None
        ) -> Call:
            call = Call(method, metadata, timeout, request_serializer, response_deserializer)
            if not is_stream:
                call.requests.put_nowait(request_serializer(request))
                call.requests.put_nowait(None)
            self._begin(call)
            return call

        return begin

    unary_unary: Any = partialmethod(_method, False)
    unary_stream: Any = partialmethod(_method, False)
    stream_unary: Any = partialmethod(_method, True)
    stream_stream: Any = partialmethod(_method, True)

    def _begin(self, call: Call) -> None:
        if self._server is None or self.get_state() is not _READY:
            call.end(Status(grpc.StatusCode.UNAVAILABLE, f"failed to connect to {self._address}"))
            return
        self._calls.add(call)
        call.when_done(partial(self._calls.discard, call))
        self._server.begin(call)
