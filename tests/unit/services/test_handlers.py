"""The interceptor of calls, where gRPC cannot send the status of an error any more."""

import asyncio
from typing import Any

import grpc
import pytest

from flyserve.core.errors import DeadlineExceeded
from services.common.handlers import CallInterceptor


class EndedCall:
    """The context of a call that has ended: its status cannot be sent."""

    async def read(self) -> bytes:
        return b""

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.metadata = metadata

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise grpc.aio.InternalError("the batch failed")


async def test_an_error_after_the_end_of_a_call_is_no_traceback() -> None:
    async def late(request: Any, context: Any) -> Any:
        raise DeadlineExceeded()

    async def found(details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(late)  # type: ignore[arg-type]

    details = type("Details", (), {"method": "/flyserve.v1.Generation/Generate"})()
    handler = await CallInterceptor().intercept_service(found, details)
    with pytest.raises(asyncio.CancelledError):
        await handler.stream_unary((), context := EndedCall())
    assert context.metadata
