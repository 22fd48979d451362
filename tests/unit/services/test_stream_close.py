"""The end of a sequence's stream, which must not fail what is complete."""

from typing import Any

import pytest

from flyserve.core.errors import InternalError, NotReady
from flyserve.core.messages import Open, Verification, VerifyStep
from flyserve.core.sequence import TokenSequence
from flyserve.v1 import target_pb2
from flyserve.wire.streams import verify_request_to_wire, verify_response_from_wire, verify_response_to_wire
from services.common.streams import SequenceStream


class Call:
    """A sequence at a server that answers its first step, and fails in some way when it is closed."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.requests: list[target_pb2.VerifyRequest] = []
        self.is_cancelled = False

    def send(self, request: target_pb2.VerifyRequest) -> int:
        self.requests.append(request)
        return request.ByteSize()

    async def receive(self) -> Any:
        if self.requests[-1].HasField("close"):
            raise self._error
        return verify_response_to_wire(Verification(self.requests[-1].step.update.step_id, (7,), (0.5,)))

    def cancel(self) -> None:
        self.is_cancelled = True


class Stream(SequenceStream[Any, Verification]):
    async def verify(self) -> Verification:
        return await self._step(lambda update: VerifyStep(update, 0), TokenSequence([1, 2]), (), 2)


@pytest.mark.parametrize("error", [NotReady("lost"), InternalError("failed"), TimeoutError()], ids=type)
async def test_a_server_that_is_lost_at_the_close_fails_nothing(error: Exception) -> None:
    call = Call(error)
    async with Stream(call, Open("r", 2), verify_request_to_wire, verify_response_from_wire) as stream:  # type: ignore[arg-type]
        answer = await stream.verify()
    assert answer.choices == (7,) and call.is_cancelled
    first, last = call.requests
    assert first.HasField("open") and first.HasField("step") and last.HasField("close")
