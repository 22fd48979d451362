"""What a caller may say of one request, beside the prompt."""

import uuid
from collections.abc import Sequence
from typing import TypedDict

from flyserve.codec import request_to_wire
from flyserve.types import Sampling, Speculation
from protos.flyserve.v1 import generation_pb2

Prompt = str | Sequence[int]
"""Text, or token ids."""


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of `generate` and `stream`, all optional.

    Attributes:
        stop: The response ends before the first of these strings.
        n: Choices, made side by side; 1 by default.
        logprobs: Tells log-probabilities, those of so many most likely tokens among them; 0 to 20.
        cache_salt: Only requests with the same one share what the servers remember of a prompt.
        priority: Higher runs first when work queues; 0 by default.
        request_id: For logs, the server's too; drawn by default.
    """

    stop: Sequence[str]
    n: int | None
    logprobs: int | None
    cache_salt: str
    priority: int
    request_id: str


def make_request(
    prompt: Prompt,
    max_new_tokens: int | None = None,
    sampling: Sampling | None = None,
    speculation: Speculation | None = None,
    *,
    stop: Sequence[str] = (),
    n: int | None = None,
    logprobs: int | None = None,
    cache_salt: str = "",
    priority: int = 0,
    request_id: str = "",
) -> generation_pb2.GenerateRequest:
    """What the wire can carry; the server judges it.

    Raises:
        InvalidRequest: A value that the wire cannot carry.
    """
    numbers = {"max_new_tokens": max_new_tokens, "n": n, "logprobs": logprobs, "priority": priority}
    names = {"cache_salt": cache_salt, "request_id": request_id or uuid.uuid4().hex}
    return request_to_wire(
        prompt, sampling or Sampling(), speculation or Speculation(), {**numbers, **names, "stop": stop}
    )
