"""Arguments of one request."""

import uuid
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

from fly.request import GenerateRequest, SamplingParams, SpeculationParams

Prompt = str | Sequence[int]
"""Text, or token ids."""


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of `generate` and `stream`, all optional.

    Attributes:
        stop: The response ends before the first of these strings.
        n: Number of choices, decoded in parallel; 1 by default.
        logprobs: Return log-probabilities, also those of this many most likely tokens; 0 to 20.
        cache_salt: The servers share cached prefixes and memories only between requests with the same salt.
        priority: Higher values run first when work queues; 0 by default.
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
    sampling: SamplingParams | None = None,
    speculation: SpeculationParams | None = None,
    **options: Unpack[RequestOptions],
) -> GenerateRequest:
    """Return the request; the wire and the server check it."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    given["request_id"] = given.get("request_id") or uuid.uuid4().hex
    # A text in place of a list is left as it is: the wire rejects it.
    if isinstance(given.get("stop"), list):
        given["stop"] = tuple(given["stop"])
    return GenerateRequest(
        prompt=prompt if isinstance(prompt, str) else tuple(prompt),
        max_new_tokens=max_new_tokens,
        sampling=sampling or SamplingParams(),
        speculation=speculation or SpeculationParams(),
        **given,
    )
