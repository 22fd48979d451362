"""Batches of the internal streams: messages of several sequences, each with the number of its sequence."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from flyserve.core.errors import FlyServeError
from flyserve.v1 import drafter_pb2, target_pb2
from flyserve.v1.drafter_pb2_grpc import DrafterStub
from flyserve.v1.target_pb2_grpc import TargetStub
from flyserve.wire.status import from_peer_status, to_status


@dataclass(frozen=True, slots=True)
class BatchMethod:
    """A method whose stream carries the sequences of a client.

    Attributes:
        begin: Begins a call on a channel.
        requests: Makes a batch of requests from a list of them; `responses` likewise.
        request: Makes a request of one sequence from its fields; `response` likewise.
    """

    begin: Callable[[grpc.aio.Channel], Any]
    requests: Callable[[Any], Any]
    request: Callable[..., Any]
    responses: Callable[[Any], Any]
    response: Callable[..., Any]


VERIFY = BatchMethod(
    lambda channel: TargetStub(channel).VerifyBatches(),
    lambda requests: target_pb2.VerifyRequests(requests=requests),
    target_pb2.VerifyRequest,
    lambda responses: target_pb2.VerifyResponses(responses=responses),
    target_pb2.VerifyResponse,
)
DRAFT = BatchMethod(
    lambda channel: DrafterStub(channel).DraftBatches(),
    lambda requests: drafter_pb2.DraftRequests(requests=requests),
    drafter_pb2.DraftRequest,
    lambda responses: drafter_pb2.DraftResponses(responses=responses),
    drafter_pb2.DraftResponse,
)


def cancel_request(method: BatchMethod, sequence: int) -> Any:
    """Return the message by which a client cancels a sequence."""
    request = method.request(sequence=sequence)
    request.cancel.SetInParent()
    return request


def end_response(method: BatchMethod, sequence: int, error: Exception | None = None) -> Any:
    """Return a server's last message of a sequence, with the error that has ended it."""
    response = method.response(sequence=sequence)
    response.end.SetInParent()
    if error is not None:
        response.end.status = to_status(error).SerializeToString()
    return response


def error_of(response: Any) -> FlyServeError | None:
    """Return the error of a server's last message; None after a close."""
    return from_peer_status(response.end.status) if response.end.status else None
