"""The end of a sequence's stream, which must not fail what is complete."""

from typing import Any

import grpc
import pytest

from flyserve.core.messages import Open, Verification, VerifyStep
from flyserve.core.sequence import TokenSequence
from flyserve.v1 import target_pb2
from flyserve.wire.streams import verify_request_to_wire, verify_response_from_wire, verify_response_to_wire
from services.common.streams import SequenceStream


class Call:
    """A call to a server that answers its first step, and ends in some way when the stream is closed."""

    def __init__(self, failing: str, error: Exception) -> None:
        self._failing, self._error = failing, error
        self.requests: list[target_pb2.VerifyRequest] = []
        self.is_cancelled = False

    async def write(self, request: target_pb2.VerifyRequest) -> None:
        self.requests.append(request)
        if request.HasField("close"):
            self._fail("write")

    async def read(self) -> Any:
        if self.requests[-1].HasField("close"):
            self._fail("read")
            return grpc.aio.EOF
        return verify_response_to_wire(Verification(self.requests[-1].step.update.step_id, (7,), (0.5,)))

    def cancel(self) -> None:
        self.is_cancelled = True

    def _fail(self, method: str) -> None:
        if method == self._failing:
            raise self._error


class Stream(SequenceStream[Any, Verification]):
    async def verify(self) -> Verification:
        return await self._step(lambda update: VerifyStep(update, 0), TokenSequence([1, 2]), (), 2)


@pytest.mark.parametrize("failing", ["write", "read"])
@pytest.mark.parametrize(
    "error", [grpc.aio.InternalError("execute_batch"), TimeoutError()], ids=["internal", "timeout"]
)
async def test_a_server_that_is_lost_at_the_close_fails_nothing(failing: str, error: Exception) -> None:
    call = Call(failing, error)
    async with Stream(call, Open("r", 2), verify_request_to_wire, verify_response_from_wire) as stream:  # type: ignore[arg-type]
        answer = await stream.verify()
    assert answer.choices == (7,) and call.is_cancelled
    first, last = call.requests
    assert first.HasField("open") and first.HasField("step") and last.HasField("close")
