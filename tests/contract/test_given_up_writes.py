"""A write that is cancelled in its middle: the client still gets the status, and at once."""

import asyncio
from typing import Any

import grpc
import pytest

from fly.errors import DeadlineExceeded
from services.common.channel import open_channel
from services.common.handlers import CallInterceptor


class FirstWriteIsGivenUp(grpc.GenericRpcHandler):
    def service(self, details: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(self._answer, bytes, bytes)

    async def _answer(self, request: bytes, context: Any) -> None:
        try:
            async with asyncio.timeout(0.0):
                await context.write(b"never awaited to its end")
        except TimeoutError:
            raise DeadlineExceeded("the client took nothing") from None


async def test_the_reason_comes_although_the_first_write_was_given_up() -> None:
    server = grpc.aio.server(interceptors=[CallInterceptor()])
    server.add_generic_rpc_handlers((FirstWriteIsGivenUp(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            method: Any = channel.unary_stream("/any/method")
            call = method(b"", timeout=240)
            with pytest.raises(grpc.aio.AioRpcError, match="the client took nothing"):
                async with asyncio.timeout(240):
                    [message async for message in call]
    finally:
        await server.stop(None)
